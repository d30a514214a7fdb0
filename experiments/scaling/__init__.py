"""Scaling laws for private language models: the loss as a function of a plan, and the best plan by it.

* ``law``: the loss as a function of model size, steps and noise-batch ratio; ``fitting`` fits it to runs.
* ``published``: the published runs and their law, from published.json, and a reader of runs in CSV files.
* ``noise_price``: the noise that a promise needs: a fast estimate for a search, and a proven value.
* ``advice``: the search, and the least loss as a function of compute.
* ``answer``: the request and the answer, in words and as data.

Nothing here imports torch.
"""

from experiments.scaling.advice import advise_language_model
from experiments.scaling.answer import LanguageModelRequest
from experiments.scaling.law import Law, Run

__all__ = [
    "LanguageModelRequest",
    "Law",
    "Run",
    "advise_language_model",
]
