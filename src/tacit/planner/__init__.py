"""Batch size, steps and noise for a privacy budget."""

from tacit.planner.advice import PlanAdvice, PlanOption, PlanRequest, advise, noise_multiplier

__all__ = ["PlanAdvice", "PlanOption", "PlanRequest", "advise", "noise_multiplier"]
