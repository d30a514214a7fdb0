"""How does Tacit work inside other libraries?

* ``sklearn``: a classifier and a regressor for scikit-learn; ``sklearn_rows``: what X and y hold;
  ``sklearn_fit``: one call of fit.
* ``transformers``: a Trainer whose steps are private; ``transformers_settings``: what it refuses.
* ``lightning``: private steps in a Lightning Trainer; ``lightning_settings``: what they refuse.
* ``tickets``: what another library's loop reads in place of batches; ``session_states``: where the states of
  a session lie beside another library's checkpoints.
* ``declared``: the classes, ranges and weights that their user declares.
* ``cells``: scikit-learn's checks, without the cells that they print.
* ``dp_accounting``: a second opinion on an epsilon.
"""

__all__: list[str] = []
