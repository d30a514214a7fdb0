"""Measures of how much a language model memorises of single records.

Plant canaries before training (:func:`plant_canaries`), measure the exposure of their secrets, let the model
complete them (:func:`greedy`, :func:`sampled`), and compare the exposures with the bound from the run's
trade-off curve (:func:`exposure_bound`).  A model is a function of arrays, and may be of any framework.
"""

from tacit.attacks.memorisation.canaries import Canary, SecretSpace, plant_canaries, planted_records
from tacit.attacks.memorisation.exposure import (
    Extrapolated,
    exact_exposure,
    exposure_bound,
    extrapolated_exposure,
    sampled_exposure,
)
from tacit.attacks.memorisation.text import (
    Divergence,
    TrainingText,
    after_repetition,
    greedy,
    log_likelihoods,
    next_log_probabilities,
    queries_needed,
    sampled,
)

__all__ = [
    "Canary",
    "Divergence",
    "Extrapolated",
    "SecretSpace",
    "TrainingText",
    "after_repetition",
    "exact_exposure",
    "exposure_bound",
    "extrapolated_exposure",
    "greedy",
    "log_likelihoods",
    "next_log_probabilities",
    "plant_canaries",
    "planted_records",
    "queries_needed",
    "sampled",
    "sampled_exposure",
]
