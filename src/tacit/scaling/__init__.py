"""How large a language model should private training have? A law of the loss, and what it advises.

law.py           Law, Run: the loss as a function of model size, steps and noise-batch ratio; Law.fit
fitting.py       least squares for Law.fit
published.py     the published runs and the law fitted to them, from published.json, with sources
noise_price.py   the noise that a promise asks for: quickly for a search, proven for an answer
question.py      the budgets that a plan starts from
advice.py        the search, loss over compute
answer.py        the answer, in words and as data
run_table.py     a user's own runs, from a CSV file

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

if not TYPE_CHECKING:  # else every name would be one of the module
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
