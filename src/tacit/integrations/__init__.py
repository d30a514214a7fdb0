"""How does Tacit work inside other libraries?

* ``sklearn``: a classifier and a regressor for scikit-learn; ``sklearn_fit``: one call of their fit.
* ``declared``: the classes and ranges that their user declares.
* ``cells``: scikit-learn's checks, without the cells that they print.
* ``dp_accounting``: a second opinion on an epsilon.
"""

__all__: list[str] = []
