"""Runs: from a configuration file to the folder of a trained model, and attacks on it.

* ``sections``, ``config``: the configuration file.  ``checks``: checks before torch is imported.  ``plan``:
  the privacy plan that the file describes.
* ``kinds``: the kinds of data, and loading the data of a run.
* ``model``: model, optimizer and loss.  ``build``: the training session with its records and ledger charges.
* ``language_model``: language models, and the files that their runs save.
* ``train``: one run, from its configuration to its folder.  ``watchers``, ``evaluated``: its metrics and its
  evaluation.
* ``together``: the processes that a launcher starts.  ``batches``, ``batch_parts``: batches that are written
  before training.
* ``public_model``, ``recipe``: public models, and defaults for settings that a run file leaves out.
* ``results``, ``public_result``: the form in which a run saves its model.
* ``saved_model``: the file of a trained model.  ``predict``, ``prediction_files``, ``export``: predictions
  and exports from that file.
* ``finished``: a finished run.  ``audit``: its audit by slots.  ``attack``: the attack on its model, and its
  planted secrets.
* ``init_file``, ``init_text``, ``init_questions``: a new configuration file.
* ``declarations``: a report on whether the declared columns fit the table.

Public names are imported on first use, so that a configuration can be checked without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tacit.runs.config import read_config
    from tacit.runs.results import Outcome
    from tacit.runs.train import Run, prepare

__all__ = ["Outcome", "Run", "prepare", "read_config"]

if not TYPE_CHECKING:  # type checkers see the imports above, and so find misspelt names

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = {"read_config": "config", "Outcome": "results"}.get(name, "train")
        return getattr(importlib.import_module(f"tacit.runs.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
