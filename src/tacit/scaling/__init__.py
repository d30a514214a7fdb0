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

from tacit.scaling.advice import advise_language_model, loss_over_compute, without_privacy
from tacit.scaling.answer import Configuration, LanguageModelAdvice, LanguageModelQuestion
from tacit.scaling.law import Law, Run
from tacit.scaling.published import published_facts, published_law, published_runs, read_runs

__all__ = [
    "Configuration",
    "LanguageModelAdvice",
    "LanguageModelQuestion",
    "Law",
    "Run",
    "advise_language_model",
    "loss_over_compute",
    "published_facts",
    "published_law",
    "published_runs",
    "read_runs",
    "without_privacy",
]
