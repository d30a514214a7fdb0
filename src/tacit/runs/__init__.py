"""How does a configuration file become the folder of a finished run, and what do attacks find on it?

* ``config``: the configuration file; ``checks``: what can be wrong with it, found before torch is imported.
* ``init_file``: a new configuration file for a table; ``init_questions``: what its wizard asks.
* ``plan``: the plan that it describes; ``catalogue``: the names that it may use.
* ``load``: the data that it names.
* ``model``: the model and the optimizer; ``losses``: the loss, by the kind of the data.
* ``build``: the session.
* ``language_section``, ``hub_layout``: language models, checked without torch; ``tokens``: documents as
  tokens; ``language_model``: the model.
* ``result``: the form in which a run leaves its model; ``language_result``: that of language models.
* ``owners``: records that are people; ``stream``: records by date; ``notes``: what a statement says of them.
* ``charging``: what the run charges to a ledger.
* ``canaries``: planted lines of text; ``canary_section``: what the configuration says of them.
* ``train``: one run from its configuration to its folder.
* ``saved_model``: the file of a trained model, and what it says of itself.
* ``predict``: the model of a run put to use; ``preprocessing``: what makes its inputs; ``prediction_files``:
  from a file of records to a table of predictions; ``export``: for other programs.
* ``folder``: the folder of a run; ``watchers``: its metrics.
* ``finished``: what a run left in its folder.
* ``attack``: a finished run under attack; ``stacking``: its shadow models, trained at once.
* ``remembering``: what a language model remembers; ``drawing``: what a classifier draws.
* ``auditing``: planted experiments on a run; ``slots``: the audit of its slots.

The names are loaded when they are first asked for, so that a configuration can be checked without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tacit.runs.build import make_session
    from tacit.runs.config import Config, read_config
    from tacit.runs.train import Outcome, Run, prepare

__all__ = ["Config", "Outcome", "Run", "make_session", "prepare", "read_config"]

_HOME_OF = {
    "Config": "config",
    "Outcome": "train",
    "Run": "train",
    "make_session": "build",
    "prepare": "train",
    "read_config": "config",
}


if not TYPE_CHECKING:  # type checkers see the imports above, and so find misspelt names

    def __getattr__(name: str) -> object:
        if name not in _HOME_OF:
            raise AttributeError(f"module 'tacit.runs' has no attribute {name!r}")
        return getattr(importlib.import_module(f"tacit.runs.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
