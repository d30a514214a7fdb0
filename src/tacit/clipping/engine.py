"""The interface of the gradient engines and what they share: what is checked before and around a step.

An engine adds the sum of the clipped per-record gradients of a batch to buffers.  A *record* is what
privacy protects; it enters a batch as K rows, its augmented views, and its gradient is that of the mean
of its K losses, clipped once (De et al., 2204.13650, section 3.2).

Letters: n records; K views; B = n K rows; G groups of parameters with a threshold each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from tacit.clipping.around import naming_checkpoints, refuse_reentrant, unchanged, uncompiled, untouched
from tacit.clipping.isolation import modules
from tacit.clipping.isolation.made_up import (
    check_records,
    each_alone,
    made_up,
    never_finite,
    pass_of_zeros,
    refuse_constant,
    refuse_zeros,
)
from tacit.clipping.isolation.modules import Survey
from tacit.clipping.isolation.randomness import devices_of
from tacit.clipping.isolation.reasons import GRADUALLY, OTHERS_TRAINABLE, warn_of_losses
from tacit.clipping.isolation.state import Memory, Place, Writes
from tacit.clipping.per_example.use import widened_type
from tacit.clipping.rules import ClippingRule
from tacit.errors import InvalidInput, PrivacyRefusal, TacitError, UnsupportedModel, check_integer, of_device

PerExampleLoss: TypeAlias = Callable[..., Tensor]
"""``(model, *batch) -> (B,)`` losses, one per row of the batch, not reduced."""

ROUNDING = 64
"""Norms are enlarged by this many units of rounding before they are compared with a threshold."""

_WIDE = (torch.float32, torch.float64)


@dataclass(frozen=True)
class RawStatistics:
    """What an engine saw on its way, before noise: never log, return to users or save it.

    ``raw_norms`` (n, G), unclipped; ``raw_losses`` (n,), mean over views; both 0 for padding.
    ``thresholds`` (G,) and ``present``, (n,) bool or None for all, are those of the call.
    """

    raw_norms: Tensor
    raw_losses: Tensor
    thresholds: Tensor
    present: Tensor | None

    @property
    def raw_below(self) -> Tensor:
        """(G,), the sum over records that are not padding of 1[norm <= C_g] - 1/2."""
        norms = self.raw_norms if self.present is None else self.raw_norms[self.present]
        return (norms <= self.thresholds).sum(0, dtype=norms.dtype) - 0.5 * len(norms)


class GradientEngine(ABC):
    """Adds the sum of clipped per-record gradients to buffers.

    **Guarantee**

    * Adding or removing one record changes the sum by at most ``rule.sensitivity(thresholds)`` in l2 norm
      over all parameters; replacing one, by at most twice that.
    * The result is a sum, never a mean: it does not depend on how many records the batch holds, nor on how
      a batch is split into microbatches.  It is multiplied by ``scale``, a constant, and so are the bounds.
    * A record whose mask is False contributes exactly nothing, whatever its rows hold, NaN included.
    * A record whose gradient is infinite or NaN contributes exactly nothing to the sum, and counts as
      above the threshold.
    * What is not covered is refused by name: losses that mix rows, layers that mix rows, parameters that
      a gradient reaches by an unseen way.
    * A compiled model is computed as it was written, uncompiled.
    * Afterwards, and also after an exception, the model is as it was: no hooks, attributes or gradients,
      same flags, same buffers.
    """

    kind = "ReferenceEngine"
    """By which a resumed run knows that it is the same: two engines round and draw differently."""

    def __init__(
        self, model: nn.Module, per_example_loss: PerExampleLoss, rule: ClippingRule, *, views: int = 1
    ) -> None:
        modules.check_model(model)
        modules.check_loss(per_example_loss, model)
        self.model = model
        self.per_example_loss = per_example_loss
        self.rule = rule
        self.views = check_integer("views", views, low=1)
        self.parameters = trainable_parameters(model)
        self.names = list(self.parameters)
        self.groups = rule.groups(self.names)
        self._survey = Survey(model)
        self._judged = [(name, module) for name, module in model.named_modules() if modules.can_mix(module)]
        self._tried: set[tuple[bool, ...]] = set()  # training flags that records of zeros went through
        self._writes = Writes(self._survey.parameters)
        self.changes_itself = False
        """Whether passes change the model, or what counts calls of the loss: each pass of a step begins alike
        then, so that what it becomes does not depend on how many passes a batch takes."""
        self._begun: Memory | None = None
        self._before: Memory | None = None  # model and loss before the first batch since begin_step
        self.draws = True  # whether passes may draw random numbers, which depend on how a batch is cut
        self.measured: dict[str, int] = {}
        """What batches are cut by, and so which numbers dropout draws: an engine that does steps again, which
        must be the same release, needs what the first one measured."""

    def add_clipped_sum(
        self,
        accumulator: Mapping[str, Tensor],
        batch: tuple[Tensor, ...],
        mask: Tensor | None,
        thresholds: Tensor,
        *,
        scale: float = 1.0,
    ) -> RawStatistics:
        """Add ``scale`` sum_i mask_i factor_i g_i in place to ``accumulator``, one buffer per name.

        ``batch``: tensors with leading dimension n K, rows i K to i K + K - 1 being record i.
        ``mask``: (n,) bool, or None for all.  ``thresholds``: (G,).  The buffers may hold anything, noise
        for instance.  A mapping may make a buffer when it is first asked for it, and keep it: a name is
        looked up when its sum is ready, after what other names needed has been freed, and not at all if
        nothing is added.
        """
        n = self._check_call(accumulator, batch, mask, thresholds)
        thresholds = thresholds.to(next(iter(self.parameters.values())).device, self._norm_dtype())
        present = None if mask is None or mask.all() else mask.to(thresholds.device)
        if mask is not None and present is not None:  # padding is left out, not multiplied: 0 * inf is NaN
            rows = mask.repeat_interleave(self.views)
            batch = tuple(tensor[rows] for tensor in batch)
        found: list[tuple[Tensor, Tensor]] = []
        if batch[0].shape[0] > 0:
            first = self._survey.flags not in self._tried
            quiet = untouched(self.model, self._survey, lambda: first or self._may_change())
            with torch.no_grad(), uncompiled(), unchanged(batch), naming_checkpoints(), quiet:
                self._try_zeros(batch)
                with self._writes.refused(self.model, keep=not self.route.startswith("fast")):
                    found = [self._add(accumulator, part, thresholds, scale) for part in self._passes(batch)]
        elif self.changes_itself:  # as if there were a record
            zeros = tuple(t.new_zeros(self.views, *t.shape[1:]) for t in batch)
            pass_of_zeros(self.model, self.per_example_loss, zeros)
        self._before, self._begun = self._before or (self._begun if self.changes_itself else None), None
        norms = _joined([of_part for of_part, _ in found], thresholds, len(self.groups))
        losses = _joined([of_part.to(thresholds) for _, of_part in found], thresholds)
        if present is not None:
            norms, losses = (
                part.new_zeros(n, *part.shape[1:]).index_put_((present,), part) for part in (norms, losses)
            )
        return RawStatistics(norms, losses, thresholds, present)

    def begin_step(self) -> None:
        """Let :meth:`undo` go back to here."""
        self._before = None

    def undo(self) -> None:
        """Leave model and loss as they were before the batches since :meth:`begin_step`."""
        if self._before is not None:
            self._before.restore()

    @property
    def route(self) -> str:
        """How batches go: ``"reference"``, each record by itself."""
        return "reference"

    def _try_zeros(self, batch: tuple[Tensor, ...]) -> None:
        """Carry out a forward pass of records of zeros, once for each combination of training flags.

        What is made once, when it is first needed, is made of no record then.
        """
        if self._survey.flags in self._tried:
            return
        around = Memory(self.model, self.per_example_loss)
        zeros = tuple(map(torch.zeros_like, made_up(batch, self.views)))
        versions = [t._version for t in zeros]
        with torch.random.fork_rng(devices=devices_of(batch)), torch.enable_grad():
            try:
                with self._writes.of_no_record():
                    losses = self._first_pass(zeros)
                after_zeros = around.restore()
                self._writes.allow(around.written)
                wrong = never_finite(self.model, self.per_example_loss, losses, zeros, around)
            except Exception as reason:  # the user's own code may raise anything
                if isinstance(reason, (TacitError, Warning, MemoryError)) or of_device(reason):
                    around.restore()
                    raise
                refuse_zeros(self.model, self.per_example_loss, self.views, batch, reason, around)
        losses = modules.check_losses(losses, len(zeros[0]))
        refuse_constant(losses)
        refuse_reentrant(losses)
        if wrong:
            warn_of_losses()
        if versions != [t._version for t in zeros]:
            self._give_copies()
        self._judge(batch, around, around.in_model(after_zeros))
        self._tried.add(self._survey.flags)

    def _first_pass(self, zeros: tuple[Tensor, ...]) -> Tensor:
        """Return the losses of the first records that model and loss see."""
        return self.per_example_loss(self.model, *zeros)

    def _judge(self, batch: tuple[Tensor, ...], around: Memory, after_zeros: Mapping[Place, Any]) -> None:
        """Refuse a model or loss that mixes or keeps records; none of the batch is read.

        ``around``: model and loss as they were; ``after_zeros``: what a pass of zeros changed.
        """
        self.changes_itself |= check_records(
            self.model, self.per_example_loss, batch, self.views, around, after_zeros, self._losses_alone
        )

    def _losses_alone(self, rows: tuple[Tensor, ...], around: Memory) -> Tensor:
        """(B,) losses of records each of which is alone."""
        return each_alone(self.model, self.per_example_loss, self.views, rows, around)

    def _restart(self) -> None:
        """Let the next pass begin with model and loss as the step did, if a pass may change them."""
        if self._begun is not None:
            self._begun.restore()
        elif self._may_change():
            self._begun = Memory(self.model, self.per_example_loss, code=True)

    def _may_change(self) -> bool:
        """Whether a pass may leave something for the next one of the step."""
        return True

    @contextmanager
    def _settled(self, batch: tuple[Tensor, ...]) -> Iterator[None]:
        """The scope of passes; model and loss are left as a record of zeros leaves them, or as they were.

        What passes leave may come from what Python read.
        """
        try:
            yield
        except BaseException:
            if self._begun is not None:
                self._begun.restore()
                self._begun = None
            raise
        self._settle(batch)

    def _settle(self, batch: tuple[Tensor, ...]) -> None:
        if self._begun is None:
            return
        self._begun.restore()
        if self.changes_itself:
            pass_of_zeros(self.model, self.per_example_loss, [t[: self.views] for t in batch])

    def _give_copies(self) -> None:
        """Let model and loss work on copies of the batch, which goes through them more than once."""
        loss = self.per_example_loss
        self.per_example_loss = lambda model, *batch: loss(model, *(t.clone() for t in batch))

    def _passes(self, batch: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
        """Return the batch in the parts that go through the model at once."""
        return [batch]

    @abstractmethod
    def _add(
        self,
        accumulator: Mapping[str, Tensor],
        batch: tuple[Tensor, ...],
        thresholds: Tensor,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        """Add the scaled sum of a batch without padding; return (n, G) norms and (n,) losses.

        Norms are in the type of the thresholds, and infinite where a gradient is not finite.
        """

    def _factors(self, norms: Tensor, thresholds: Tensor, scale: float) -> Tensor:
        """Return the (n, G) factors, scaled.

        A record with a norm that is not finite has none: the engines leave it out, as 0 * inf is NaN.
        """
        types = frozenset([parameter.dtype for parameter in self.parameters.values()])
        return self.rule.factors(norms * _enlargement(types), thresholds) * scale

    def _norm_dtype(self) -> torch.dtype:
        wide = any(parameter.dtype == torch.float64 for parameter in self.parameters.values())
        return torch.float64 if wide else torch.float32

    def _check_call(
        self,
        accumulator: Mapping[str, Tensor],
        batch: tuple[Tensor, ...],
        mask: Tensor | None,
        thresholds: Tensor,
    ) -> int:
        """Refuse a call that does not fit the model or the batch; return n."""
        if mask is not None and (mask.dim() != 1 or mask.dtype != torch.bool):
            raise InvalidInput(f"mask must be a (n,) bool tensor; got {mask.dtype}, {tuple(mask.shape)}.")
        self._refuse_autocast()
        lengths = {t.shape[0] if t.dim() else -1 for t in batch}
        n = max(lengths, default=0) // self.views if mask is None else mask.shape[0]
        if lengths != {n * self.views}:
            raise InvalidInput(
                f"each tensor of the batch needs {n} records x {self.views} views = {n * self.views} rows; "
                f"got shapes {[tuple(t.shape) for t in batch]}."
            )
        if thresholds.shape != (len(self.groups),):
            raise InvalidInput(
                f"thresholds must have shape ({len(self.groups)},), one per group; "
                f"got {tuple(thresholds.shape)}."
            )
        self._check_model()
        self._check_accumulator(accumulator)
        return n

    def _refuse_autocast(self) -> None:
        kinds = {"cpu", *(parameter.device.type for parameter in self.parameters.values())}
        if any(map(torch.is_autocast_enabled, kinds)):
            raise PrivacyRefusal(
                "torch.autocast is on around the private step: it would round norms and sums as well, and "
                "what is clipped by rounded norms is longer than the bound. Put it into the loss function, "
                "around model(...), where it concerns forward and backward pass alone."
            )

    def _check_model(self) -> None:
        """Judge what changed in the model since the last call; refuse gradients that are in use."""
        survey = Survey(self.model)
        if survey != self._survey:
            if not trainable_parameters(self.model):  # frozen since, of which more can be said
                self._check_parameters()
            modules.check_model(self.model)
            self._check_parameters()
            self._judged = [(name, m) for name, m in self.model.named_modules() if modules.can_mix(m)]
        self._survey = survey
        for name, module in self._judged:
            modules.check_module(name, module)
        for name, parameter in self.parameters.items():
            if parameter.grad is not None:
                raise PrivacyRefusal(
                    f"parameter {name!r} already has a gradient, from a backward pass that is not private. "
                    "Call optimizer.zero_grad(set_to_none=True) first. Where another model is trained "
                    "through this one, as the generator of a GAN, freeze this one meanwhile: "
                    "model.requires_grad_(False) before that backward pass, model.requires_grad_(True) "
                    "after it."
                )

    def _check_parameters(self) -> None:
        """Refuse a model whose trainable parameters are others than when the engine was made."""
        current = trainable_parameters(self.model)
        changes = {
            "trainable now": sorted(current.keys() - self.parameters.keys()),
            "frozen now or gone": sorted(self.parameters.keys() - current.keys()),
            "replaced by other tensors": [
                name for name, old in self.parameters.items() if current.get(name, old) is not old
            ],
        }
        said = "; ".join(f"{what}: {', '.join(names)}" for what, names in changes.items() if names)
        if said:
            raise UnsupportedModel(f"{OTHERS_TRAINABLE} ({said}). {GRADUALLY}")

    def _check_accumulator(self, accumulator: Mapping[str, Tensor]) -> None:
        """Refuse a mapping without some name, and buffers that do not fit if they are there already."""
        missing = sorted(set(self.names) - set(accumulator))
        if missing:
            raise InvalidInput(f"accumulator has no buffers for {missing}; it needs one per trainable name.")
        if isinstance(accumulator, dict):  # other mappings may make a buffer only now, and keep it
            for name in self.names:
                self._buffer(accumulator, name)

    def _buffer(self, accumulator: Mapping[str, Tensor], name: str) -> Tensor:
        """Return the buffer of a name, if it has the parameter's shape and a type that is wide enough."""
        buffer, shape = accumulator[name], self.parameters[name].shape
        if buffer.shape != shape:
            raise InvalidInput(
                f"accumulator[{name!r}] must have shape {tuple(shape)}; got {tuple(buffer.shape)}."
            )
        if buffer.dtype not in _WIDE:
            raise InvalidInput(
                f"accumulator[{name!r}] must be float32 or wider, not {buffer.dtype}: "
                "a sum of small contributions is lost in narrow types."
            )
        return buffer


@lru_cache(maxsize=16)
def _enlargement(types: frozenset[torch.dtype]) -> float:
    """Return by how much the norms of parameters of these types are enlarged, for what rounding may do."""
    return 1 + ROUNDING * max(torch.finfo(widened_type(dtype)).eps for dtype in types)


def _joined(parts: Sequence[Tensor], like: Tensor, *width: int) -> Tensor:
    """Return what the passes found, (n, *width)."""
    return parts[0] if len(parts) == 1 else torch.cat([like.new_zeros(0, *width), *parts])


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require gradients, tied ones once, under their first name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}
