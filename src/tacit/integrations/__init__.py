"""How does Tacit work inside other libraries?

* ``sklearn``: a classifier and a regressor for scikit-learn; ``sklearn_rows``: what X and y hold;
  ``sklearn_declared``: what their user declares; ``sklearn_fit``: one call of fit, and
  whether it is one of many.
* ``transformers``: a Trainer whose steps are private; ``transformers_settings``: what it refuses.
* ``lightning``: private steps in a Lightning Trainer, and what they refuse.
* ``loops``: what another library's loop reads in place of batches, and where the states of a session lie.
* ``dp_accounting``: a second opinion on an epsilon.
"""

__all__: list[str] = []
