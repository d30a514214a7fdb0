"""Which noise did a run add? L1: what it released less the clipped sums of the definition."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tacit.audits.regression.recorder import NotedRows, Release
from tacit.clipping.engine import PerExampleLoss
from tacit.clipping.reference import ReferenceEngine
from tacit.errors import InvalidInput
from tacit.plan import Plan


def noise_of_run(
    model: nn.Module, loss: PerExampleLoss, plan: Plan, rows: NotedRows, releases: list[Release]
) -> dict[str, NDArray[np.float64]]:
    """(T, ...) noise of the sum by parameter, over its standard deviation, for ``noise_law(..., std=1)``.

    The sums come from the reference engine, record by record, on the records that were taken.  ``model`` has
    the weights that the releases were made with, and ``plan`` flat, automatic or per-layer clipping.

    :raises InvalidInput: if there are views, whose random draws the recorder does not record.
    """
    if plan.views > 1:
        raise InvalidInput(
            "the noise of a run with views cannot be separated from them. Audit it with one view."
        )
    engine = ReferenceEngine(model, loss, plan.clipping)
    thresholds = plan.clipping.initial_thresholds(engine.names)
    std = plan.gradient_noise_multiplier * plan.clipping.sensitivity(thresholds)
    noise: dict[str, list[NDArray[np.float64]]] = {name: [] for name in engine.names}
    for release in releases:
        sums = {name: torch.zeros_like(p) for name, p in engine.parameters.items()}
        if release.taken:
            chosen = torch.tensor(release.taken)
            batch = tuple(tensor[chosen] for tensor in rows.tensors)
            mask = torch.ones(len(chosen), dtype=torch.bool)
            engine.add_clipped_sum(sums, batch, mask, torch.tensor(thresholds, dtype=torch.float64))
        for (name, total), gradient in zip(sums.items(), release.gradients, strict=True):
            if gradient is None:
                raise InvalidInput(f"nothing was released of {name}: its gradient is None.")
            excess = plan.expected_batch_size * gradient - total.double().cpu()
            noise[name].append((excess / std).numpy())
    return {name: np.stack(values) for name, values in noise.items()}
