"""How does Tacit work inside other libraries?

* ``sklearn``: a classifier and a regressor for scikit-learn; ``sklearn_rows``: what X and y hold;
  ``sklearn_fit``: one call of fit.
* ``declared``: the classes, ranges and weights that their user declares.
* ``cells``: scikit-learn's checks, without the cells that they print.
* ``dp_accounting``: a second opinion on an epsilon.
"""

__all__: list[str] = []
