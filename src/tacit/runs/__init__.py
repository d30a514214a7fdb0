"""Runs: from a configuration file to the folder of a trained model, and attacks on it.

* ``sections``, ``config``: the configuration file; ``checks``: checks before torch is imported; ``plan``: the
  plan that it describes.
* ``kinds``: each kind of data, and the data that a configuration names.
* ``model``: model, optimizer and loss; ``build``: the session, its records and charges.
* ``language_model``: language models, and their result.
* ``train``: one run from its configuration to its folder; ``watchers``, ``evaluated``: its files.
* ``together``: processes of a launcher; ``batches``: batches that are written in advance.
* ``public_model``, ``recipe``: public models, and the settings that a run file leaves out;
  ``results``, ``public_result``: the form in which a run saves its model.
* ``saved_model``: the file of a trained model; ``predict``, ``prediction_files``, ``export``: its use.
* ``finished``: a finished run, and its audit; ``attack``, ``stacking``, ``remembering``: attacks on it.
* ``init_file``, ``init_text``, ``init_questions``: a new configuration file; ``declarations``: whether it
  fits its table.

Names are loaded on first use, so that a configuration can be checked without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tacit.moved import moved

if TYPE_CHECKING:
    from tacit.runs.config import read_config
    from tacit.runs.results import Outcome
    from tacit.runs.train import Run, prepare

__all__ = ["Outcome", "Run", "prepare", "read_config"]

_FORMER = {"Config": "tacit.runs.config.Config", "make_session": "tacit.runs.build.make_session"}


if not TYPE_CHECKING:  # type checkers see the imports above, and so find misspelt names

    def __getattr__(name: str) -> object:
        if name not in __all__:
            return moved(__name__, _FORMER)(name)
        home = {"read_config": "config", "Outcome": "results"}.get(name, "train")
        return getattr(importlib.import_module(f"tacit.runs.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
