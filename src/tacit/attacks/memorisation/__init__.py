"""What do generative models remember of single records? Secrets in text, and pictures.

Plant canaries before training (:func:`plant_canaries`); measure the exposure of their secrets, let the model
complete them (:func:`greedy`, :func:`beam`, :func:`extraction`), and compare both with what the run's
trade-off curve allows (:func:`exposure_bound`).  Models are functions of arrays, so any framework's will do.
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
    Extraction,
    Sampler,
    TrainingText,
    after_repetition,
    beam,
    extraction,
    greedy,
    log_likelihoods,
    next_log_probabilities,
    queries_needed,
    repeat_probe,
    sampled,
)

__all__ = [
    "Canary",
    "Divergence",
    "Extraction",
    "Extrapolated",
    "Sampler",
    "SecretSpace",
    "TrainingText",
    "after_repetition",
    "beam",
    "exact_exposure",
    "exposure_bound",
    "extraction",
    "extrapolated_exposure",
    "greedy",
    "log_likelihoods",
    "next_log_probabilities",
    "plant_canaries",
    "planted_records",
    "queries_needed",
    "repeat_probe",
    "sampled",
    "sampled_exposure",
]
