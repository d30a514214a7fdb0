"""The reference engine: per-record gradients as the definition says, one after the other or by vmap.

Letters: n records; K views; B = n K rows; G groups of parameters; m records of a chunk.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.overrides import TorchFunctionMode

from tacit.clipping.engine import GradientEngine, PerExampleLoss, full_precision
from tacit.clipping.isolation import modules
from tacit.clipping.per_example.use import row_squares, widened

__all__ = ["ReferenceEngine"]

CHUNK_BYTES = 64 * 2**20
"""Per-record gradients that are held at once."""


@final
class ReferenceEngine(GradientEngine):
    """sum_i min(1, C / |g_i|) g_i from one gradient per record, g_i = d(mean of K losses) / d parameters.

    Records go through ``vmap`` in chunks; a model that ``vmap`` cannot carry is
    differentiated for one record after the other.
    """

    _use_vmap = True

    def _add(
        self, accumulator: Mapping[str, Tensor], batch: tuple[Tensor, ...], thresholds: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        records = tuple(t.reshape(-1, self.views, *t.shape[1:]) for t in batch)  # (n, K, ...)
        size = sum(p.numel() * p.element_size() for p in self.parameters.values())
        m = max(1, CHUNK_BYTES // max(size, 1))
        found = [
            self._add_chunk(accumulator, tuple(t[start : start + m] for t in records), thresholds, scale)
            for start in range(0, len(records[0]), m)
        ]
        norms = torch.cat([norms for norms, _ in found]).to(thresholds)
        return norms.nan_to_num_(nan=torch.inf, posinf=torch.inf), torch.cat([losses for _, losses in found])

    def _add_chunk(
        self,
        accumulator: Mapping[str, Tensor],
        records: tuple[Tensor, ...],
        thresholds: Tensor,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        gradients, losses = self._gradients(records)
        with full_precision():
            return self._add_clipped(accumulator, gradients, thresholds, scale), losses

    def _add_clipped(
        self,
        accumulator: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor],
        thresholds: Tensor,
        scale: float,
    ) -> Tensor:
        """Add the scaled clipped sum of {name: (m, *shape)} gradients; return their (m, G) norms."""
        squares = {name: row_squares(g.reshape(len(g), -1)) for name, g in gradients.items()}
        norms = torch.stack(
            [torch.stack([squares[name] for name in group]).sum(0) for group in self.groups], dim=1
        ).sqrt()
        factors = self._factors(norms, thresholds, scale)
        kept = norms.isfinite().all(dim=1).nonzero().squeeze(1)
        for number, group in enumerate(self.groups):
            for name in group:
                gradient = gradients[name][kept]
                scaled = torch.tensordot(factors[kept, number].to(gradient.dtype), gradient, dims=1)
                self._buffer(accumulator, name).add_(scaled)
        return norms

    def _gradients(self, records: tuple[Tensor, ...]) -> tuple[dict[str, Tensor], Tensor]:
        """Return {name: (m, *shape)} gradients and (m,) losses of records with (m, K, ...) rows."""
        if self._use_vmap:
            self._restart()
            try:
                with _Failures() as failures:
                    found = self._by_vmap(records)
                if not failures.seen:  # what fails for one record does for all, and the model may go by it
                    return found
            except (RuntimeError, KeyError, TypeError):  # an operation without a batching rule
                self._use_vmap = False
        each = [self._one_by_one(rows) for rows in zip(*records, strict=True)]
        stacked = {name: torch.stack([g[name] for g, _ in each]) for name in self.names}
        return _widen(stacked), torch.stack([value for _, value in each])

    def _one_by_one(self, rows: tuple[Tensor, ...]) -> tuple[dict[str, Tensor], Tensor]:
        """Return the gradient and the loss of one record with (K, ...) rows: the definition."""
        self._restart()
        with torch.enable_grad():
            losses = modules.check_losses(self.per_example_loss(self.model, *rows), self.views)
            gradients = torch.autograd.grad(
                losses.mean(), list(self.parameters.values()), allow_unused=True, materialize_grads=True
            )
        return dict(zip(self.names, gradients, strict=True)), losses.detach().mean()

    def _places(self) -> dict[str, str]:
        """Return where each parameter is, each module once: a tied one is in several modules.

        ``functional_call`` does not find its way back where one module has two names.
        """
        names = {id(p): name for name, p in self.parameters.items()}
        return {
            f"{prefix}.{name}".lstrip("."): names[id(p)]
            for prefix, module in self.model.named_modules()
            for name, p in module._parameters.items()
            if id(p) in names
        }

    def _by_vmap(self, records: tuple[Tensor, ...]) -> tuple[dict[str, Tensor], Tensor]:
        """Return the same for m records at once."""
        bound = _Loss(self.model, self.per_example_loss)
        values = {name: p.detach() for name, p in self.parameters.items()}
        places = self._places()

        def loss(parameters: dict[str, Tensor], *rows: Tensor) -> Tensor:
            state = {f"model.{place}": parameters[name] for place, name in places.items()}
            losses: Tensor = functional_call(bound, state, rows, tie_weights=False)
            return modules.check_losses(losses, self.views).mean()

        mapped = vmap(grad_and_value(loss), in_dims=(None,) + (0,) * len(records), randomness="different")
        with warnings.catch_warnings(), _own_weights(self.model):
            warnings.filterwarnings("ignore", "There is a performance drop")
            gradients, losses = mapped(values, *records)
        return _widen(gradients), losses


class _Failures(TorchFunctionMode):
    """Whether an operation failed, though the model went on, or Python read all records at once."""

    seen = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        self.seen |= func is Tensor.__repr__  # which prints all records
        try:
            return func(*args, **(kwargs or {}))
        except Exception:
            self.seen = True
            raise


@contextmanager
def _own_weights(model: nn.Module) -> Iterator[None]:
    """Leave recurrent layers with the list of their weights, in which lent ones stay."""
    layers = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
    weights = [list(layer._flat_weights) for layer in layers]
    try:
        yield
    finally:
        for layer, own in zip(layers, weights, strict=True):
            layer._flat_weights = own


class _Loss(nn.Module):
    """The loss as a module, so that ``functional_call`` can lend it other parameters."""

    def __init__(self, model: nn.Module, per_example_loss: PerExampleLoss) -> None:
        super().__init__()
        self.model = model
        self.per_example_loss = per_example_loss

    def forward(self, *batch: Tensor) -> Tensor:
        return self.per_example_loss(self.model, *batch)


def _widen(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the gradients in float32 or wider."""
    return {name: widened(g) for name, g in gradients.items()}
