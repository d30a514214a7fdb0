"""Tacit inside other libraries.

* ``sklearn``: a classifier and a regressor for scikit-learn; ``sklearn_rows``: the content of X and y;
  ``sklearn_declared``: the user's declarations; ``sklearn_fit``: one call of fit, and whether it is one of
  many.
* ``transformers``: a Trainer whose steps are private; ``transformers_settings``: the settings that it
  refuses.
* ``lightning``: private steps in a Lightning Trainer, and the settings that they refuse.
* ``loops``: the tickets that another library's loop reads in place of batches, and the states of a session.
* ``dp_accounting``: a second opinion on an epsilon.
"""

__all__: list[str] = []
