"""The interface of the gradient engines, and their common checks before and around a step.

Letters: n records; K views; B = n K rows; G groups of parameters, each with a threshold.
"""

# An engine adds the sum of the clipped per-record gradients of a batch to buffers. A *record* is the unit of
# privacy. It enters a batch as K rows, its augmented views. Its gradient is the gradient of the mean of its K
# losses, and is clipped once (De et al., 2204.13650, section 3.2).

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from tacit.clipping.isolation import model_checks
from tacit.clipping.isolation.model_checks import Survey, Writes, same, version_of
from tacit.clipping.isolation.randomness import devices_of
from tacit.clipping.isolation.reasons import GRADUALLY, MODE, OTHERS_TRAINABLE, warn_of_losses
from tacit.clipping.isolation.synthetic import (
    HeldRecords,
    check_records,
    each_alone,
    made_up,
    never_finite,
    refuse_constant,
    refuse_zeros,
)
from tacit.clipping.per_example.use import widened_type
from tacit.clipping.rules import ClippingRule
from tacit.errors import InvalidInput, PrivacyRefusal, TacitError, UnsupportedModel, check_integer, of_device

# Guards around a step, which keep model and batch unchanged and compute products in full precision.


_CUDA: bool = torch.backends.cuda.is_built()  # type: ignore[no-untyped-call]


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute float32 products in float32; with TF32 or bfloat16, norms would not match the sum."""
    matmul, cudnn = torch.get_float32_matmul_precision(), _CUDA and torch.backends.cudnn.allow_tf32
    if matmul != "highest":
        torch.set_float32_matmul_precision("highest")
    if cudnn:
        torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        if matmul != "highest":
            torch.set_float32_matmul_precision(matmul)
        if cudnn:
            torch.backends.cudnn.allow_tf32 = True


def uncompiled() -> AbstractContextManager[object]:
    """Run compiled models eagerly, as the recorder cannot see how compiled code reads parameters."""
    compiled = "torch._dynamo" in sys.modules  # importing it takes seconds; without it nothing is compiled
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


@contextmanager
def unchanged(batch: Sequence[Tensor]) -> Iterator[None]:
    """Refuse a step that changes the batch in place; this refusal replaces any other one."""
    versions = [tensor._version for tensor in batch]
    refusal: UnsupportedModel | None = None
    try:
        yield
    except UnsupportedModel as error:
        refusal = error
    if versions != [tensor._version for tensor in batch]:
        raise UnsupportedModel(
            "the model or the loss changes the batch in place. Write x = x * 2 instead of x *= 2, or begin "
            "with x = x.clone()."
        ) from refusal
    if refusal is not None:
        raise refusal


def refuse_modes() -> None:
    """Refuse a step under a mode of torch, which would see the tensors of all records.

    A default device is allowed: it is such a mode, but reads no tensor.
    """
    functions: list[object] = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    modes = [*functions, *_get_current_dispatch_mode_stack()]
    foreign = [type(mode).__name__ for mode in modes if not isinstance(mode, DeviceContext)]
    if foreign:
        raise UnsupportedModel(MODE.format(foreign[0]))


_BUFFERS = (
    "the forward pass changes the buffers {}, which would be released with raw data of records. Use layers "
    "without running statistics (tacit.models.networks.make_private_ready)."
)
_VECTORS = (
    "the forward pass changes the buffers {}, the vectors of spectral_norm, so the weights would depend on "
    "the number of passes in a step. After each "
    "model.train(), call module.parametrizations.weight.eval(), or module.eval() for the old "
    "torch.nn.utils.spectral_norm. To renew the vectors between steps, at no privacy cost: p.train(); "
    "module.weight; p.eval() under torch.no_grad(), with p = module.parametrizations.weight."
)


@contextmanager
def untouched(model: nn.Module, survey: Survey, *, by_value: bool) -> Iterator[None]:
    """Delete gradients after the step. If the step changed buffers, restore them and refuse the step.

    Args:
        model: the module whose buffers the refusal names.
        survey: its parameters and buffers.
        by_value: whether Python may read values of records. It could write them into buffers unseen, so the
            buffers' values are compared, which waits for the device. Otherwise torch's version counters
            suffice: under vmap, no value of a record can enter a buffer, not even through ``.data``.
    """
    buffers = [buffer for _, _, buffer in survey.buffers]
    copies, versions = [torch.empty_like(buffer) for buffer in buffers], list(map(version_of, buffers))
    if buffers:
        torch._foreach_copy_(copies, buffers)
    changed: list[Tensor] = []
    refusal: UnsupportedModel | None = None
    try:
        yield
    except UnsupportedModel as error:  # the names of changed buffers say more than this refusal
        refusal = error
    finally:
        for parameter in survey.parameters:
            if parameter.requires_grad:
                parameter.grad = None
        for (module, name, buffer), copy, before in zip(survey.buffers, copies, versions, strict=True):
            may_differ = by_value or before is None or before != version_of(buffer)
            if module._buffers.get(name) is not buffer or (may_differ and not same(buffer, copy)):
                changed.append(buffer)
                module._buffers[name] = buffer
                with torch.no_grad():
                    buffer.copy_(copy)
    if changed:
        names = [name for name, buffer in model.named_buffers() if any(buffer is c for c in changed)]
        vectors = all(name.endswith(("_u", "_v")) for name in names)
        raise UnsupportedModel(_VECTORS.format(names) if vectors else _BUFFERS.format(names)) from refusal
    if refusal is not None:
        raise refusal


_REENTRANT = (
    "the model has checkpoints with use_reentrant=True, which are not supported. Pass use_reentrant=False "
    "to torch.utils.checkpoint.checkpoint."
)


@contextmanager
def naming_checkpoints() -> Iterator[None]:
    """Explain torch's error about reentrant checkpoints, whose gradients cannot be assigned to records."""
    try:
        yield
    except RuntimeError as error:
        if "use_reentrant=True" not in str(error):
            raise
        raise UnsupportedModel(_REENTRANT) from error


def refuse_reentrant(losses: Tensor) -> None:
    """Refuse reentrant checkpoints that raise no error in torch.

    They are nodes in the graph of the losses. The parameters inside such a checkpoint would not be trained.
    """
    ahead, visited = [losses.grad_fn], set[object]()
    while ahead:
        node = ahead.pop()
        if node is None or node in visited:
            continue
        if node.name() == "CheckpointFunctionBackward":
            raise UnsupportedModel(_REENTRANT)
        visited.add(node)
        ahead += [before for before, _ in node.next_functions]


PerExampleLoss: TypeAlias = Callable[..., Tensor]
"""A function ``(model, *batch)`` that returns (B,) losses, one per row of the batch, without reduction."""

ROUNDING = 64
"""Norms are enlarged by this many units of rounding before they are compared with a threshold."""

_WIDE = (torch.float32, torch.float64)


@dataclass(frozen=True)
class RawStatistics:
    """The values of a step before noise: never log them, return them to users or save them.

    ``raw_norms``: (n, G) norms before clipping. ``raw_losses``: (n,) losses, averaged over views. Both are 0
    for padding. ``thresholds``: the (G,) thresholds of the call. ``present``: (n,) bool, False for padding;
    None if there is no padding.
    """

    raw_norms: Tensor
    raw_losses: Tensor
    thresholds: Tensor
    present: Tensor | None

    @property
    def raw_below(self) -> Tensor:
        """The centred count (G,): the sum of 1[norm <= C_g] - 1/2 over all records except padding."""
        norms = self.raw_norms if self.present is None else self.raw_norms[self.present]
        return (norms <= self.thresholds).sum(0, dtype=norms.dtype) - 0.5 * len(norms)


class GradientEngine(ABC):
    """Adds the sum of clipped per-record gradients to buffers.

    **Guarantee**

    * Adding or removing one record changes the sum by at most ``rule.sensitivity(thresholds)`` in l2 norm
      over all parameters. Replacing one record changes it by at most twice that.
    * The result is a sum, never a mean: it is not divided by the number of records, and does not depend on
      how a batch is split into microbatches.  The constant ``scale`` multiplies the sum and these bounds.
    * A record whose mask is False contributes exactly nothing, whatever its rows hold, NaN included.
    * A record whose gradient is infinite or NaN contributes exactly nothing to the sum, and counts as
      above the threshold.
    * The engine refuses unsupported models, and says why: losses or layers that mix rows, and parameters
      whose gradient comes from an operation that the engine cannot see.
    * A compiled model runs eagerly.
    * After a call, even one that raises, the model has no new hooks or gradients, and the same buffers as
      before.
    * With ``expected`` set, the number of calls of the loss depends on it and on shapes alone, not on the
      number of records.
    """

    by_value = True
    """Whether a pass may write values of records into the model, whose tensors are compared then."""
    kind = "ReferenceEngine"
    """The engine's name. A resumed run compares it, as engines round and draw differently."""

    route = "reference"
    """The engine's route: ``"reference"``, one record at a time, or ``"fast"``, one pass for all."""

    def __init__(
        self, model: nn.Module, per_example_loss: PerExampleLoss, rule: ClippingRule, *, views: int = 1
    ) -> None:
        model_checks.check_model(model)
        self.model = model
        self.per_example_loss = per_example_loss
        self.rule = rule
        self.views = check_integer("views", views, low=1)
        self.parameters = trainable_parameters(model)
        self.names = list(self.parameters)
        self.groups = rule.groups(self.names)
        self._survey = Survey(model)
        self._types: frozenset[torch.dtype] = frozenset()
        self._devices: list[int] = []
        """The types and CUDA devices of the parameters, which ``model.to(...)`` may change between calls."""
        self._judged = [
            (name, module) for name, module in model.named_modules() if model_checks.can_mix(module)
        ]
        self._tried: set[object] = set()  # training flags and shapes for which a pass of zeros was run
        self._writes = Writes(self._survey.parameters)
        self.expected: int | None = None
        """The public number of records of a batch, which decides the number of passes; None: the batch's."""
        self.shared_seed: int | None = None
        """The seed of numbers that all records of a step share; None: of a call."""
        self.sources: tuple[Tensor, ...] = ()  # tensors of all records, which the loss may not read
        self.draws = True  # whether passes may draw random numbers, which depend on how a batch is split
        self.measured: dict[str, int] = {}
        """Values that decide how batches are split, and so what dropout draws. To repeat a step with the same
        release, an engine needs the same values.
        """

    def add_clipped_sum(
        self,
        accumulator: Mapping[str, Tensor],
        batch: tuple[Tensor, ...],
        mask: Tensor | None,
        thresholds: Tensor,
        *,
        scale: float = 1.0,
    ) -> RawStatistics:
        """Add ``scale`` sum_i mask_i factor_i g_i in place to ``accumulator``, which has a buffer per name.

        ``batch``: tensors with leading dimension n K; rows i K to i K + K - 1 are record i. ``mask``: (n,)
        bool, False for padding, or None if there is none. ``thresholds``: (G,). Buffers may already contain
        numbers, such as noise. The mapping may create a buffer when its name is first looked up. That is when
        its sum is ready and the memory for earlier names is freed, or never if nothing is added.
        """
        refuse_modes()
        n = self._check_call(accumulator, batch, mask, thresholds)
        parameters = self.parameters.values()
        self._types, self._devices = frozenset([p.dtype for p in parameters]), devices_of(parameters)
        device = next(iter(parameters)).device
        thresholds = thresholds.to(device, torch.float64 if torch.float64 in self._types else torch.float32)
        present = None if mask is None or mask.all() else mask.to(thresholds.device)
        if mask is not None and present is not None:  # left out, not multiplied by 0: 0 * inf is NaN
            rows = mask.repeat_interleave(self.views)
            batch = tuple(tensor[rows] for tensor in batch)
        pairs: list[tuple[Tensor, Tensor]] = []
        quiet = untouched(self.model, self._survey, by_value=self.by_value)
        with torch.no_grad(), uncompiled(), unchanged(batch), naming_checkpoints(), quiet:
            self._try_zeros(batch)
            with self._writes.refused(self.model, keep=self.by_value):
                for part in self._microbatches(batch):
                    if len(part[0]) > 0:
                        pairs.append(self._add(accumulator, part, thresholds, scale))
                    else:  # runs on zeros: it adds nothing, but is as public as all others
                        self._losses_alone(tuple(t.new_zeros(self.views, *t.shape[1:]) for t in part))
        norms = _joined([of_part for of_part, _ in pairs], thresholds, len(self.groups))
        losses = _joined([of_part.to(thresholds) for _, of_part in pairs], thresholds)
        if present is not None:
            norms, losses = (
                part.new_zeros(n, *part.shape[1:]).index_put_((present,), part) for part in (norms, losses)
            )
        return RawStatistics(norms, losses, thresholds, present)

    def _try_zeros(self, batch: tuple[Tensor, ...]) -> None:
        """Run model and loss on synthetic records, once for each shape and combination of training flags.

        State that is created at the first use is created in the first of these passes, from zeros, and so
        contains no data.
        """
        key = self._survey.flags, *((t.shape[1:], t.dtype) for t in batch)
        if key in self._tried:
            return
        # the shapes of the batch, with a public number of records
        n = len(batch[0]) // self.views if self.expected is None else self.expected
        like = tuple(t.new_zeros(()).expand(n * self.views, *t.shape[1:]) for t in batch)
        zeros = tuple(map(torch.zeros_like, made_up(like, self.views)))
        versions = [t._version for t in zeros]
        versions_before = self._writes.versions()
        with torch.random.fork_rng(devices=devices_of(batch)), torch.enable_grad():
            try:
                with HeldRecords(self.sources):
                    losses = self._first_pass(zeros)
                first = self._writes.since(versions_before)
                wrong = never_finite(self.model, self.per_example_loss, losses, zeros)
            except Exception as reason:  # the user's own code may raise anything
                if isinstance(reason, (TacitError, Warning, MemoryError)) or of_device(reason):
                    raise
                refuse_zeros(self.model, self.per_example_loss, made_up(like, self.views), reason)
        losses = model_checks.check_losses(losses, len(zeros[0]))
        refuse_constant(losses)
        refuse_reentrant(losses)
        if wrong:
            warn_of_losses()
        if versions != [t._version for t in zeros]:
            # from now on the loss gets copies of the batch, as it changes its arguments in place
            loss = self.per_example_loss
            self.per_example_loss = lambda model, *batch: loss(model, *(t.clone() for t in batch))
        versions_before = self._writes.versions()
        check_records(self.model, self.per_example_loss, like, self.views, self._losses_alone)
        self._writes.allow(self.model, first, self._writes.since(versions_before))
        self._tried.add(key)

    def _first_pass(self, zeros: tuple[Tensor, ...]) -> Tensor:
        """Return the losses of ``zeros``, the first records that model and loss see."""
        return self.per_example_loss(self.model, *zeros)

    def _losses_alone(self, rows: tuple[Tensor, ...]) -> Tensor:
        """Return (B,) losses, each computed from its record alone."""
        return each_alone(self.model, self.per_example_loss, self.views, rows)

    def _microbatches(self, batch: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
        """Split the batch into parts that take one pass each."""
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

        The norms have the data type of the thresholds. They are infinite if a gradient is not finite.
        """

    def _factors(self, norms: Tensor, thresholds: Tensor, scale: float) -> Tensor:
        """Return the (n, G) factors times ``scale``; the factor of an infinite norm is 0."""
        return self.rule.factors(norms * _enlargement(self._types), thresholds) * scale

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
        kinds = {"cpu", *(parameter.device.type for parameter in self.parameters.values())}
        if any(map(torch.is_autocast_enabled, kinds)):
            raise PrivacyRefusal(
                "torch.autocast is on around the private step. It would round norms, so clipped gradients "
                "could exceed the bound. Use it only inside the loss function, around model(...)."
            )
        lengths = {t.shape[0] if t.dim() else -1 for t in batch}
        n = max(lengths, default=0) // self.views if mask is None else mask.shape[0]
        if lengths != {n * self.views}:
            raise InvalidInput(
                f"each tensor of the batch needs {n * self.views} rows, {self.views} augmented copies of "
                f"each of {n} records; got shapes {[tuple(t.shape) for t in batch]}."
            )
        if thresholds.shape != (len(self.groups),):
            raise InvalidInput(
                f"thresholds must have shape ({len(self.groups)},), one per group of parameters; got "
                f"{tuple(thresholds.shape)}."
            )
        self._check_model()
        missing = sorted(set(self.names) - set(accumulator))
        if missing:
            raise InvalidInput(f"accumulator lacks a buffer for {missing}. Add one for each.")
        if isinstance(accumulator, dict):  # other mappings may create and keep a buffer at this look-up
            for name in self.names:
                self._buffer(accumulator, name)
        return n

    def _check_model(self) -> None:
        """Check the model again if it changed since the last call; refuse parameters that have gradients."""
        survey = Survey(self.model)
        if survey != self._survey:
            if not trainable_parameters(self.model):  # frozen since: this error is more specific
                self._check_parameters()
            model_checks.check_model(self.model)
            self._check_parameters()
            self._judged = [(name, m) for name, m in self.model.named_modules() if model_checks.can_mix(m)]
        self._survey = survey
        for name, module in self._judged:
            model_checks.check_module(name, module)
        for name, parameter in self.parameters.items():
            if parameter.grad is not None:
                raise PrivacyRefusal(
                    f"parameter {name!r} already has a gradient, which has no noise. Call "
                    "optimizer.zero_grad(set_to_none=True) before the step. If you train another model "
                    "through this one, as in a GAN, call model.requires_grad_(False) on this one before "
                    "that backward pass, and model.requires_grad_(True) after it."
                )

    def _check_parameters(self) -> None:
        """Refuse a model whose trainable parameters changed since the engine was made."""
        current = trainable_parameters(self.model)
        changes = {
            "trainable now": sorted(current.keys() - self.parameters.keys()),
            "frozen now or gone": sorted(self.parameters.keys() - current.keys()),
            "replaced by other tensors": [
                name for name, old in self.parameters.items() if current.get(name, old) is not old
            ],
        }
        summary = "; ".join(f"{change}: {', '.join(names)}" for change, names in changes.items() if names)
        if summary:
            raise UnsupportedModel(f"{OTHERS_TRAINABLE} ({summary}). {GRADUALLY}")

    def _buffer(self, accumulator: Mapping[str, Tensor], name: str) -> Tensor:
        """Return the buffer of a parameter; refuse one of another shape or of a type below float32."""
        buffer, shape = accumulator[name], self.parameters[name].shape
        if buffer.shape != shape:
            raise InvalidInput(
                f"accumulator[{name!r}] must have shape {tuple(shape)}; got {tuple(buffer.shape)}."
            )
        if buffer.dtype not in _WIDE:
            raise InvalidInput(
                f"accumulator[{name!r}] must be float32 or wider, because narrow types lose small "
                f"contributions; got {buffer.dtype}."
            )
        return buffer


@lru_cache(maxsize=16)
def _enlargement(types: frozenset[torch.dtype]) -> float:
    """Return the factor by which norms of parameters of these types are enlarged, to cover rounding."""
    return 1 + ROUNDING * max(torch.finfo(widened_type(dtype)).eps for dtype in types)


def _joined(parts: Sequence[Tensor], like: Tensor, *width: int) -> Tensor:
    """Return the results of the passes as one tensor (n, *width)."""
    return parts[0] if len(parts) == 1 else torch.cat([like.new_zeros(0, *width), *parts])


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require gradients, by name; a tied one appears once, by its first name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}
