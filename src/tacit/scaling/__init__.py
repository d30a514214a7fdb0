"""Scaling laws for private language models: the loss as a function of a plan, and the best plan by it.

* ``law``: the loss as a function of model size, steps and noise-batch ratio; ``fitting`` fits it to runs.
* ``published``: the published runs and their law, from published.json, and a reader of runs in CSV files.
* ``noise_price``: the noise that a promise needs: a fast estimate for a search, and a proven value.
* ``advice``: the search, and the least loss as a function of compute.
* ``answer``: the request and the answer, in words and as data.

Nothing here imports torch.
"""

from typing import TYPE_CHECKING

from tacit.moved import moved as _moved
from tacit.scaling.advice import advise_language_model
from tacit.scaling.answer import LanguageModelRequest
from tacit.scaling.law import Law, Run

__all__ = [
    "LanguageModelRequest",
    "Law",
    "Run",
    "advise_language_model",
]

if not TYPE_CHECKING:  # else type checkers would take any name for one of the module
    __getattr__ = _moved(
        __name__,
        {
            "Configuration": "tacit.scaling.answer.Configuration",
            "LanguageModelAdvice": "tacit.scaling.answer.LanguageModelAdvice",
            "LanguageModelQuestion": "tacit.scaling.LanguageModelRequest",
            "loss_over_compute": "tacit.scaling.advice.loss_over_compute",
            "published_facts": "tacit.scaling.published.published_facts",
            "published_law": "tacit.scaling.published.published_law",
            "published_runs": "tacit.scaling.published.published_runs",
            "read_runs": "tacit.scaling.published.read_runs",
            "without_privacy": "tacit.scaling.advice.without_privacy",
        },
    )
