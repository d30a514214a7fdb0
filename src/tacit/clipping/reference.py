"""The reference engine, which computes the gradient of one record after the other, as the definition says.

Letters: n records; K views; G groups of parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor

from tacit.clipping.engine import GradientEngine, full_precision
from tacit.clipping.isolation import model_checks
from tacit.clipping.isolation.randomness import only_torch_draws
from tacit.clipping.isolation.synthetic import OneRow
from tacit.clipping.per_example.use import row_squares, widened


@final
class ReferenceEngine(GradientEngine):
    """Computes sum_i min(1, C / |g_i|) g_i one record at a time; g_i = d(mean of K losses) / d parameters.

    Python may read values of records here, so the guarantee has an assumption: model and loss keep nothing of
    a record in Python.
    """

    def _add(
        self, accumulator: Mapping[str, Tensor], batch: tuple[Tensor, ...], thresholds: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        norms, losses = [], []
        for start in range(0, len(batch[0]), self.views):
            rows = tuple(t[start : start + self.views] for t in batch)
            norm, loss = self._add_one(accumulator, rows, thresholds, scale)
            norms.append(norm)
            losses.append(loss)
        return torch.stack(norms), torch.stack(losses)

    def _add_one(
        self, accumulator: Mapping[str, Tensor], rows: tuple[Tensor, ...], thresholds: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Add the clipped gradient of the record with these K rows; return its (G,) norms and its loss.

        A record whose gradient is not finite adds nothing, and its norms are infinite.
        """
        with only_torch_draws(), torch.enable_grad():
            with OneRow(rows):
                losses = self.per_example_loss(self.model, *rows)
            losses = model_checks.check_losses(losses, self.views)
            grads = torch.autograd.grad(
                losses.mean(), list(self.parameters.values()), allow_unused=True, materialize_grads=True
            )
        gradients = {name: widened(g) for name, g in zip(self.names, grads, strict=True)}
        with full_precision():
            squares = {name: row_squares(g.reshape(1, -1))[0] for name, g in gradients.items()}
            norms = torch.stack(
                [torch.stack([squares[name] for name in group]).sum() for group in self.groups]
            )
            norms = norms.sqrt().to(thresholds)
            if norms.isfinite().all():
                factors = self._factors(norms[None], thresholds, scale)[0]
                for factor, group in zip(factors, self.groups, strict=True):
                    for name in group:
                        buffer = self._buffer(accumulator, name)
                        buffer.add_(gradients[name].to(buffer.dtype) * factor.to(buffer.dtype))
        return norms.nan_to_num(nan=torch.inf, posinf=torch.inf), losses.detach().mean()
