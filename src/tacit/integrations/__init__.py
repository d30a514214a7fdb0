"""Tacit inside other libraries.

* ``sklearn``: a classifier and a regressor for scikit-learn; ``sklearn_rows``: the content of X and y;
  ``sklearn_declared``: checks of the declared classes, bounds and weights; ``sklearn_fit``: one call of fit;
  ``sklearn_searches``: warnings about grid searches.
* ``transformers``: a Trainer whose steps are private; ``transformers_settings``: the settings that it
  refuses.
* ``lightning``: private steps in a Lightning Trainer, and the settings that they refuse.
* ``loops``: the step tickets that another library's loop reads in place of batches, and the files of a
  session's state.
* ``dp_accounting``: the epsilon of Google's dp_accounting, as a second opinion.
"""

__all__: list[str] = []
