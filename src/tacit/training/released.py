"""The checks of a release, the guarded optimizer, and averages of the weights."""

# **Guarantee**
#
# * While a :class:`GuardedOptimizer` exists, a call of ``optimizer.step()`` outside its
#   :meth:`~GuardedOptimizer.step` raises an error.  So does the step of any other torch optimizer that holds
#   one of the trained parameters.
# * The engine clips the gradient of every parameter that the optimizer would train.
# * If other code left a gradient on a parameter, the private step is refused.
# * A process never releases two different sums under the same noise.  After another learning rate, or with
#   another loss or other records, a repeated step has another sum under the same noise, and the difference of
#   the two has none.  :class:`NoiseReuse` compares random sums of all numbers of each release.
#
# **Not covered**
#
# * Code that changes the parameters without a torch optimizer, such as ``load_state_dict`` or
#   ``p.sub_(...)``. The user is responsible for it: a value that is computed from the training records
#   without noise is not private.
#
# No error or warning says that single records have a gradient of NaN, because that would reveal something
# about them.  They depend on weights and noisy losses alone.

from __future__ import annotations

import copy
import hashlib
import math
import secrets
import warnings
import weakref
from array import array
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tacit.clipping.engine import full_precision
from tacit.errors import Diverged, InvalidInput, LossWarning, PrivacyRefusal, check_real
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.training.part import Part
from tacit.training.ranks import Layout

_STEPPING: set[int] = set()
"""The ids of the parameters that a private step is changing."""
_GUARDS: weakref.WeakSet[GuardedOptimizer] = weakref.WeakSet()
"""All guards; one hook on all optimizers calls them before each step."""


@final
class GuardedOptimizer:
    """Takes the steps of ``optimizer`` on the parameters ``trained``, and refuses all other steps on them."""

    def __init__(self, optimizer: torch.optim.Optimizer, trained: Mapping[str, nn.Parameter]) -> None:
        self.optimizer = optimizer
        self._trained = trained
        self._ids = {id(p) for p in trained.values()}
        self._check_hooks()
        self._check_parameters()
        _GUARDS.add(self)

    def step(self, gradients: dict[str, Tensor]) -> None:
        """Take a step with these gradients, which are removed from the dictionary and the parameters."""
        for name, parameter in self._trained.items():
            gradient = gradients.pop(name)
            same = gradient.dtype == parameter.dtype
            parameter.grad = gradient if same else gradient.to(parameter.dtype)
        _STEPPING.update(self._ids)
        try:
            self.optimizer.step()
        finally:
            _STEPPING.difference_update(self._ids)
            for parameter in self._trained.values():
                parameter.grad = None

    def check_no_gradients(self) -> None:
        stray = [name for name, p in self._trained.items() if p.grad is not None]
        others = (p for group in self.optimizer.param_groups for p in group["params"])
        if not stray and any(p.grad is not None for p in others):
            stray = ["parameters of the optimizer that the session does not train"]
        if stray:
            raise PrivacyRefusal(
                f"a loss.backward() outside the session left gradients without noise on {', '.join(stray)}. "
                "Remove it from the loop; session.step(step) computes the gradients. If you train another "
                "model through this one, as in a GAN, freeze this one meanwhile: "
                "discriminator.requires_grad_(False) before the generator's loss.backward(), and "
                "discriminator.requires_grad_(True) after it."
            )

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the optimizer's state bit for bit; torch would cast it to the type of the weights."""
        self.optimizer.load_state_dict(state)
        parameters = list(_parameters(self.optimizer))
        for position, entries in state["state"].items():
            parameter = parameters[position]
            for name, value in entries.items():
                if isinstance(value, Tensor):
                    device = self.optimizer.state[parameter][name].device
                    self.optimizer.state[parameter][name] = value.clone().to(device)

    def check_step_of(self, optimizer: torch.optim.Optimizer) -> None:
        if optimizer is self.optimizer and not self._ids <= _STEPPING:
            raise PrivacyRefusal(
                "optimizer.step() was called outside the session, on gradients without clipping and noise. "
                "Remove it from the loop; session.step(step) takes the optimizer's step."
            )
        guarded = self._ids - _STEPPING
        if not guarded:
            return
        if shared := guarded.intersection(id(p) for p in _parameters(optimizer)):
            names = [name for name, p in self._trained.items() if id(p) in shared]
            raise PrivacyRefusal(
                f"a second optimizer ({type(optimizer).__name__}) is about to change "
                f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''} without clipping and noise, but "
                "a private session trains them. Train them only by session.step(step). To train on public "
                "records too, do it before you make the session, after del session, or on a copy."
            )

    def _check_hooks(self) -> None:
        if hasattr(self.optimizer, "_optimizer_step_pre_hooks"):
            return
        kind, attributes = type(self.optimizer).__name__, getattr(self.optimizer, "__dict__", {})
        inside = [name for name, value in attributes.items() if isinstance(value, torch.optim.Optimizer)]
        if inside:
            raise InvalidInput(
                f"{kind} wraps another optimizer and has no step hooks, which the session needs to refuse "
                f"steps outside it. Pass the wrapped optimizer: optimizer.{inside[0]}."
            )
        raise InvalidInput(
            f"{kind} has no step hooks of torch.optim.Optimizer. The session needs them to refuse steps "
            "outside it. Pass an optimizer of torch, or derive its class from torch.optim.Optimizer and "
            "call super().__init__(params, defaults)."
        )

    def _check_parameters(self) -> None:
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise InvalidInput(
                "LBFGS evaluates the loss several times per step, which a private step does not allow. Use "
                "SGD, Adam or another first-order optimizer."
            )
        if isinstance(self.optimizer, torch.optim.SparseAdam):
            raise InvalidInput("SparseAdam needs sparse gradients, but a noisy gradient is dense. Use Adam.")
        held = list(_parameters(self.optimizer))
        ids = {id(p) for p in held}
        missing = [name for name, p in self._trained.items() if id(p) not in ids]
        if missing:
            raise InvalidInput(
                f"the optimizer lacks the trainable parameters {', '.join(missing)}. Their gradients would "
                "get noise but change nothing. Pass model.parameters() to the optimizer, or freeze them."
            )
        if any(p.requires_grad and id(p) not in self._ids for p in held):
            raise PrivacyRefusal(
                "the optimizer has trainable parameters outside the model, which get no clipped gradient. "
                "Put all trained parameters into one module."
            )


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[nn.Parameter]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _check_step(optimizer: torch.optim.Optimizer, *arguments: object) -> None:
    """Let all guards check a step; torch calls this before each step of any optimizer."""
    del arguments
    for guard in _GUARDS:
        guard.check_step_of(optimizer)


# One hook serves all guards and is never removed.  If each guard had a hook, a guard that is deleted while
# torch calls its hooks would change their list.
register_optimizer_step_pre_hook(_check_step)


_AT_BOUND = 0.97  # share of the bound from which a mean counts as being at it; the rest is a margin for noise
_PRECISION = 0.02  # standard error of the mean that is judged, as a share of the bound
_SHOWN = 3
_TOGETHER = 10  # steps between two checks of the weights
_SKETCHES = 3  # sums that are kept of each release
_ROW = 256  # numbers that share a weight of their row, and are added up in their own precision
_LARGE = 2**16  # numbers of a gradient that is multiplied alone
_ROUNDING = 2e-6  # share of the norm by which another order of additions may change a sketch
_SEED = secrets.randbits(128)  # of the weights: nobody can choose a sum for which they fail
_TRACES: dict[bytes, array[float]] = {}
"""Sketches of the released steps by digest of the key, with NaN for all other steps."""
_COMING: list[tuple[array[float], slice, Tensor, torch.cuda.Event]] = []
"""Pending copies from a device: the key's traces, the step's part, the sketch, its event."""


@final
class NoiseReuse(Part):
    """Refuses a step that would release another sum with noise this process has used."""

    def __init__(self, generator: Generator, layout: Layout) -> None:
        self._generator, self._layout = generator, layout

    def released(self, step: int, gradients: dict[str, Tensor], thresholds: list[float]) -> dict[str, Tensor]:
        self._layout.together(lambda: check_release(self._generator, step, gradients))
        return gradients

    def load(self, state: Mapping[str, Any], generator: Generator) -> None:
        self._generator = generator


def check_release(generator: Generator, step: int, gradients: Mapping[str, Tensor]) -> None:
    """Refuse a second, different release for ``step`` and this key, unless it is a test key."""
    key, secure = generator.secret_state()
    if not secure:
        return
    if _COMING:
        _collect()
    traces = _TRACES.setdefault(hashlib.blake2b(key, digest_size=16).digest(), array("d"))
    traces.extend([math.nan] * (_SKETCHES * (step + 1) - len(traces)))
    of_step = slice(_SKETCHES * step, _SKETCHES * (step + 1))
    before = traces[of_step]
    sketch = _sketch(gradients)

    if sketch.is_cuda and math.isnan(before[0]):  # nothing to compare with: do not wait for the device
        copy = torch.empty_like(sketch, device="cpu", pin_memory=True).copy_(sketch, non_blocking=True)
        _COMING.append((traces, of_step, copy, torch.cuda.current_stream(sketch.device).record_event()))
        return

    *now, norm = sketch.tolist()
    most = _ROUNDING * norm / math.sqrt(_SKETCHES)
    alike = all(abs(a - b) <= most for a, b in zip(before, now, strict=True))
    if not math.isnan(before[0]) and not alike:
        raise PrivacyRefusal(
            f"step {step} was taken before, with the same noise but another result. The difference of the "
            "two results would reveal records without noise. Give each session its own StepCharges, and no "
            "generator. After session.load(path), change nothing: learning rates, loss, or mode of the "
            "model. To try something else, start a new run."
        )
    traces[of_step] = array("d", now)


def _collect() -> None:
    """Store the sketches of earlier steps, whose copies from the device have usually arrived by now."""
    while _COMING:
        traces, of_step, sketch, copied = _COMING.pop()
        copied.synchronize()
        traces[of_step] = array("d", sketch[:-1].tolist())


def _sketch(gradients: Mapping[str, Tensor]) -> Tensor:
    """Return :data:`_SKETCHES` randomly weighted sums of all numbers, and the rows' norm.

    A number in column c of row r has the weight ``w_c v_r``, with w and v normal, so a sketch is one matrix
    product with few weights.  If two releases differ by norm d, one of their sums differs by less than t with
    a probability of about t / d, and all three with its third power.
    """
    # Small gradients go into one matrix, as an operation on each would take longer than a copy.
    rests, matrices = [], []
    for gradient in gradients.values():
        flat = gradient.reshape(-1)
        rows = flat.numel() // _ROW if flat.numel() >= _LARGE else 0
        if rows:
            matrices.append(flat[: rows * _ROW].view(rows, _ROW))
        rests.append(flat[rows * _ROW :])
    missing = -sum(map(len, rests)) % _ROW
    rest = torch.cat([*rests, rests[0].new_zeros(missing)])
    matrices.append(rest.view(len(rest) // _ROW, _ROW))

    columns = _weights(_ROW, rest.device)
    with full_precision():
        of_rows = torch.cat([matrix @ columns.to(matrix.dtype) for matrix in matrices]).double()
    sums = (of_rows * _weights(len(of_rows), rest.device)).sum(0)
    return torch.cat([sums, of_rows.norm().view(1)])


@lru_cache(maxsize=8)
def _weights(count: int, device: torch.device) -> Tensor:
    """Return random weights, (count, _SKETCHES), the same in all steps of a process."""
    weights = np.random.default_rng([_SEED, count]).standard_normal((_SKETCHES, count), np.float32)
    return torch.from_numpy(weights).to(device).t()


@final
class AveragedWeights(Part):
    """Averages the weights: ``w <- m w + (1 - m) w_t`` with ``m = min(decay, (1 + t) / (10 + t))``.

    De et al. (2204.13650, section 3.3).  Post-processing of released weights, at no cost.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay = check_real("ema decay", decay, low=0.0, high=1.0, open_high=True)
        self._model = model
        self._weights = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}

    def applied_to(self, model: nn.Module) -> nn.Module:
        averaged = copy.deepcopy(model)
        with torch.no_grad():
            for name, parameter in averaged.named_parameters():
                if name in self._weights:
                    parameter.copy_(self._weights[name])
        return averaged

    def update(self, model: nn.Module, steps_done: int) -> None:
        momentum = min(self._decay, (1 + steps_done) / (10 + steps_done))
        current = dict(model.named_parameters())
        with torch.no_grad():
            for name, average in self._weights.items():
                average.mul_(momentum).add_(current[name], alpha=1 - momentum)

    def after(self, step: int, loss: float | None) -> None:
        self.update(self._model, step + 1)

    def facts(self, key: bytes) -> dict[str, Any]:
        return {"ema": self._decay}

    def state(self, done: int) -> dict[str, Any]:
        return {"averaged": self._weights}

    def load(self, state: Mapping[str, Any], generator: Generator) -> None:
        for name, average in self._weights.items():
            average.copy_(state["averaged"][name])


def check_weights(
    trained: Mapping[str, nn.Parameter], step: int, optimizer: torch.optim.Optimizer, layout: Layout
) -> None:
    """Refuse NaN or infinite weights after each of the first ten steps, then after every tenth."""
    if step >= _TOGETHER and step % _TOGETHER != _TOGETHER - 1:
        return
    with torch.no_grad():
        weights = [layout.local(weight) for weight in trained.values()]
        device = weights[0].device
        norms = torch._foreach_norm(weights)  # few kernel launches for all weights
        sums = torch.stack([norm.float().to(device) for norm in norms])
        layout.add_up(sums)
        if math.isfinite(float(sums.sum())):  # the host waits for one number
            return
        counts = torch.stack([(~weight.isfinite()).sum(dtype=torch.float32).to(device) for weight in weights])
        layout.add_up(counts)
        wrong = [name for name, count in zip(trained, counts.tolist(), strict=True) if count]
    if not wrong:  # the weights are finite, but their norms overflow
        return
    rates = ", ".join(
        sorted({f"{float(group['lr']):g}" for group in optimizer.param_groups if "lr" in group})
    )
    when = f"step {step}" if step < _TOGETHER else f"step {step}, or one of the nine before"
    more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    raise Diverged(
        f"weights are NaN or infinite after {when}: {', '.join(wrong[:_SHOWN])}{more}. Training ends here, "
        "because later steps would only spend budget on noise; the steps so far stay charged. Resume from "
        "an earlier saved state, or start a new run, with a lower learning rate (now "
        f"{rates or 'not known'}). Use float32 weights instead of float16. Look for divisions, logarithms "
        "and square roots of zero."
    )


@final
class Divergence(Part):
    """Ends a run with NaN weights, and warns once if the noisy loss stays at the bound of its report."""

    def __init__(
        self,
        plan: Plan,
        trained: Mapping[str, nn.Parameter],
        optimizer: torch.optim.Optimizer,
        layout: Layout,
    ) -> None:
        self._trained, self._optimizer, self._layout = trained, optimizer, layout
        self._bound = 0.0 if plan.loss_report is None else plan.loss_report.bound
        batch = plan.expected_batch_size
        noise = (plan.loss_noise or 0.0) / batch
        self._steps = math.ceil((noise**2 + 0.25 / batch) / _PRECISION**2)  # 0.25: the batch size varies
        self._said = False
        self._count, self._sum = 0, 0.0

    def after(self, step: int, loss: float | None) -> None:
        if loss is not None and not self._said:
            self._take(loss)
        check_weights(self._trained, step, self._optimizer, self._layout)

    def _take(self, loss: float) -> None:
        self._count, self._sum = self._count + 1, self._sum + loss
        if self._count < self._steps:
            return
        mean, self._count, self._sum = self._sum / self._count, 0, 0.0
        if mean < _AT_BOUND * self._bound:
            return
        self._said = True
        warnings.warn(
            f"the noisy training loss of the last {self._steps} steps is at its bound, {self._bound:g}: "
            "losses are larger, or NaN. NaN gradients add nothing to a step, so the model may be learning "
            "from noise alone. Try model and loss on dummy records, check divisions, logarithms and square "
            "roots for zeros, and lower the learning rate. If losses are that large, raise the bound: "
            "loss_report=LossReport(bound=...), or [privacy] loss_bound in a configuration.",
            LossWarning,
            stacklevel=4,
        )
