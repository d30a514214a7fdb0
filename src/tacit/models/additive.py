"""Linear models for tables: least squares in one release, binned columns, standardized targets, classes.

Letters: n records; d columns; f inputs; k targets or classes; s, a step's noise multiplier.
"""

from __future__ import annotations

import copy
import datetime as dt
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.clipping.rules import ClippingRule
from tacit.columns import Column, Encoder
from tacit.columns.column import PART_NAMES
from tacit.columns.encoder import bounds_of, classes_of, feature_names, is_one_hot
from tacit.errors import InvalidInput, check_integer, check_real
from tacit.models.networks import Logistic

# --- least squares -----------------------------------------------------------------------------------------
#
# Least squares from noisy second moments of the records, which have d = f + 1 entries.
# This is sufficient statistics perturbation (Vu and Slavkovic, 2009; Wang, 1803.02596); Mehta et al.
# (2211.13403) use it for a last layer on strong features.  Least squares needs only two sums over records,
#
#     A = sum of x x^T,    M = sum of x y^T,    W = (A + r I)^-1 M.
#
# One full-batch step of DP-SGD releases both. The loss of a record is -(a <G x, x> + b <V x, y>), linear in
# the weights G and V, so its gradient is -(a x x^T, b y x^T) for any weights. A session can therefore provide
# sampling, clipping, noise, ledger, audit slots and users with several rows as for any model.


class Moments(nn.Module):
    """The two sums as weights that start at zero, and a loss whose negative gradient is the contribution.

    ``constant`` is the last entry of x, instead of an intercept. ``cross_share`` is b^2, V's share of the
    squared sensitivity; the rest is a^2. ``normalise`` scales each record, with its constant, to norm 1,
    which uses the whole sensitivity; otherwise all are divided by the largest norm, sqrt(f + constant^2).

    **Guarantee**

    * The gradient of a record's loss is -(a x x^T, b y x^T), with ``|x| <= 1`` and ``|y| <= 1`` for any
      record, so its norm is at most 1: ``a^2 |x|^4 + b^2 |y|^2 |x|^2 <= a^2 + b^2 = 1``.  Clipping at 1
      changes no gradient.
    * Under add-remove and zero-out the sums of neighbours therefore differ by norm at most 1.  Under
      replace-one they differ by at most 2, as accountants assume.

    Shapes: :meth:`forward` maps (n, f) inputs and (n, k) targets, or (n,) class numbers, to (n,) losses.
    """

    codes: Tensor | None

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        normalise: bool = False,
        constant: float = 1.0,
        cross_share: float = 0.5,
        classes: bool = False,
    ) -> None:
        super().__init__()
        check_integer("inputs", inputs, low=1)
        check_integer("outputs", outputs, low=1)
        check_real("cross_share", cross_share, low=0.0, high=1.0, open_low=True, open_high=True)
        check_real("constant", constant, low=0.0, open_low=True)
        self.normalise, self.constant, self.cross_share = normalise, constant, cross_share
        self.register_buffer("codes", simplex_codes(outputs) if classes else None, persistent=False)
        self.gram = nn.Linear(inputs + 1, inputs + 1, bias=False)  # G
        self.cross = nn.Linear(inputs + 1, outputs, bias=False)  # V
        nn.init.zeros_(self.gram.weight)
        nn.init.zeros_(self.cross.weight)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        x, y = self.rows(inputs), _within_1(targets if self.codes is None else self.codes[targets])
        a, b = math.sqrt(1 - self.cross_share), math.sqrt(self.cross_share)
        losses: Tensor = -(a * (self.gram(x) * x).sum(1) + b * (self.cross(x) * y).sum(1))
        return losses

    def rows(self, inputs: Tensor) -> Tensor:
        """Return x, (n, f + 1): (n, f) inputs and a constant, scaled to norm at most 1."""
        return _with_constant(inputs, self.constant, normalise=self.normalise)

    def solve(self, *, records: float, noise_multiplier: float, ridge: float = 1.0) -> LeastSquaresHead:
        """Return the least-squares model from the released sums.  Post-processing, at no cost."""
        # The model predicts targets. For classes it predicts logits that give the predicted probabilities to
        # first order around 1/k.
        #
        # The noisy A is made symmetric, and its negative eigenvalues, which are noise, are set to 0. Then
        # ``ridge`` times s sqrt(2 d) / a is added to all eigenvalues. The public number s sqrt(2 d) / a is
        # the largest eigenvalue of the noise alone (Wigner's semicircle).
        check_real("records", records, low=0.0, open_low=True)
        check_real("noise_multiplier", noise_multiplier, low=0.0, open_low=True)
        check_real("ridge", ridge, low=0.0, open_low=True)
        A = self.gram.weight.detach().double() / math.sqrt(1 - self.cross_share)
        M = self.cross.weight.detach().double() / math.sqrt(self.cross_share)
        values, vectors = torch.linalg.eigh((A + A.T) / 2)
        edge = math.sqrt(2 * len(A)) * noise_multiplier / math.sqrt(1 - self.cross_share) / records
        W: Tensor = (M @ vectors / (values.clamp_min(0.0) + ridge * edge)) @ vectors.T
        if self.codes is not None:
            # Predicted codes are probabilities minus 1/k, up to scale. Logits that are sqrt(k (k - 1)) times
            # the code give these probabilities to first order around 1/k. Subtracting the mean over classes
            # changes no prediction.
            W = (W - W.mean(0)) * math.sqrt(len(W) * (len(W) - 1))
        return LeastSquaresHead(W, normalise=self.normalise, constant=self.constant)


class LeastSquaresHead(nn.Module):
    """The solved model, which maps (n, f) inputs to (n, k) outputs and is linear in x."""

    def __init__(self, weight: Tensor, *, normalise: bool, constant: float) -> None:
        super().__init__()
        self.normalise, self.constant = normalise, constant
        self.linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        with torch.no_grad():
            self.linear.weight.copy_(weight)

    def affine(self) -> tuple[Tensor, Tensor]:
        """Return weights (k, f) and constants (k,) for inputs in [-1, 1], if ``normalise`` is off."""
        weight = self.linear.weight
        weight = weight / (MARGIN * math.sqrt(weight.shape[1] - 1 + self.constant**2))
        return weight[:, :-1], weight[:, -1] * self.constant

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.linear(_with_constant(inputs, self.constant, normalise=self.normalise))
        return outputs


def _with_constant(inputs: Tensor, constant: float, *, normalise: bool) -> Tensor:
    """Append a constant to (n, f) inputs and scale to norm at most 1; rows that are not finite become 0."""
    if inputs.ndim != 2:
        raise InvalidInput(f"inputs must have shape (n, f); got {tuple(inputs.shape)}.")
    clean = torch.where(inputs.isfinite().all(1, keepdim=True), inputs, 0.0)
    x = torch.cat([clean, torch.full_like(clean[:, :1], constant)], dim=1)
    if normalise:
        return F.normalize(x / x.abs().amax(1, keepdim=True), dim=1) / MARGIN  # squares do not overflow
    return _within_1(x / (MARGIN * math.sqrt(inputs.shape[1] + constant**2)))


MARGIN = 1 + 1e-6  # covers what float32 rounding may add to a norm of 1


def _within_1(rows: Tensor) -> Tensor:
    """Clip rows to norm 1; rows that are not finite become 0."""
    clean = torch.where(rows.isfinite().all(1, keepdim=True), rows, 0.0)
    cut: Tensor = clean / clean.norm(dim=1, keepdim=True).clamp_min(1.0)
    return cut


def simplex_codes(classes: int) -> Tensor:
    """Return a target of norm 1 for each class, (k, k): the vertices of a regular simplex."""
    # They are scaled one-hot vectors minus 1/k. Their mean over equally likely classes is 0, so no part of
    # the norm is spent on a mean.
    check_integer("classes", classes, low=2)
    return (torch.eye(classes) - 1 / classes) * math.sqrt(classes / (classes - 1))


# --- models that train in phases ---------------------------------------------------------------------------

_SHARE = 1 / 11  # share of the steps that learn mean and spread; averages of the others get 5 % more noise
_SHARE_OF_SHARES, _SHARE_OF_CONSTANTS = 0.02, 0.13  # of a classifier's steps
_FEWEST = 50  # with fewer steps, all train the layer
_OF_DISTANCE = 1.5  # spread / mean distance: 1.25 for a normal distribution, more for long tails
_LEAST_SPREAD = 0.003  # for targets in [-1, 1]


class Binned(nn.Module):
    """Appends to each of d columns a one-hot code of its bin, among bins of equal width.

    A linear model of these inputs is a sum of one curve per column: a generalized additive model (Hastie and
    Tibshirani, 1986).

    Shapes: (n, d) in [-1, 1] to (n, d (bins + 1)).

    >>> Binned(3)(torch.tensor([[-1.0, 0.5]]))
    tensor([[-1.0000,  1.0000,  0.0000,  0.0000,  0.5000,  0.0000,  0.0000,  1.0000]])
    """

    def __init__(self, bins: int) -> None:
        super().__init__()
        self.bins = check_integer("bins", bins, low=2)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the columns with the codes of their bins.  Each bin includes its lower edge."""
        numbers = ((inputs + 1) / 2 * self.bins).floor().clamp(0, self.bins - 1)
        places = torch.arange(self.bins, device=inputs.device, dtype=inputs.dtype)
        within = (numbers[..., None] == places).to(inputs.dtype)
        return torch.cat([inputs[..., None], within], dim=-1).flatten(1)


class Planned(Protocol):
    """The attributes of a :class:`tacit.plan.Plan` that the model reads."""

    @property
    def steps(self) -> int: ...
    @property
    def clipping(self) -> ClippingRule: ...
    @property
    def expected_batch_size(self) -> float: ...
    @property
    def gradient_noise_multiplier(self) -> float: ...


class InPhases(nn.Module, ABC):
    """A model that trains one part per step, depending on the step's number."""

    phase: Tensor
    phase_of: ClassVar[Mapping[str, int]]  # of each part, by its name

    @abstractmethod
    def for_plan(self, plan: Planned) -> None: ...

    def groups(self) -> list[dict[str, object]]:
        """Return the parameter groups for the optimizer, each with its ``phase``."""
        return [
            {"params": list(self.get_submodule(name).parameters()), "phase": phase}
            | ({} if name == "layer" else {"weight_decay": 0.0})
            for name, phase in self.phase_of.items()
        ]

    @abstractmethod
    def part_of(self, step: int, steps: int) -> tuple[int, Mapping[int, float]]:
        """Return the phase of a step, and the learning rate of each phase that has its own."""

    def begin_step(self, optimizer: torch.optim.Optimizer, step: int, steps: int) -> None:
        """Choose the part that a step trains."""
        phase, rates = self.part_of(step, steps)
        self.phase.fill_(float(phase))
        for group in optimizer.param_groups:
            usual = group.setdefault("usual", (group["lr"], group.get("momentum", 0.0)))
            rate, momentum = (rates[group["phase"]], 0.0) if group["phase"] in rates else usual
            group["lr"] = rate if group["phase"] == phase else 0.0
            if "momentum" in group:
                group["momentum"] = momentum if group["phase"] == phase else 0.0


class StandardLinear(InPhases):
    """A linear model of targets in [-1, 1] that first learns their mean and spread, then its weights.

    Target bounds chosen without the data are wide, so errors are far smaller than a clipping norm that fits
    the bounds, and noise in proportion to that norm is wasteful.  Therefore the first steps release the mean
    of y and its mean absolute deviation.  The other steps train on (y - mean) / spread.
    :meth:`InPhases.begin_step` chooses the phase of a step.

    Args:
        inputs: f, the number of inputs.
        outputs: k, the number of targets.
        normalise: scale each record to mean 0 and variance 1, at no cost.

    **Guarantee**

    * In the first steps, the gradient of a record's loss is -C y / sqrt(k), and then
      -C |y - mean| / (2 sqrt(k)).  Its norm is at most C for targets in [-1, 1].  In the other steps it is
      the gradient of a squared error.  All these gradients are clipped, released and accounted for as usual.
      Mean and spread are read from released weights.

    Shapes: :meth:`forward` maps (n, f) inputs to (n, k) predictions, or with (n, k) targets to (n,) losses.

    >>> model = StandardLinear(3, 1)
    >>> model(torch.ones(2, 3)).shape, model(torch.ones(2, 3), torch.ones(2, 1)).detach()
    (torch.Size([2, 1]), tensor([0.5000, 0.5000]))
    """

    phase_of = MappingProxyType({"layer": 2, "about_mean": 0, "about_spread": 1})
    scale: Tensor
    least: Tensor

    def __init__(self, inputs: int, outputs: int, *, normalise: bool = False) -> None:
        super().__init__()
        self.layer = Logistic(inputs, outputs, normalise=normalise)
        self.about_mean = nn.Linear(outputs, 1, bias=False)  # C / sqrt(k) times the mean of y
        self.about_spread = nn.Linear(outputs, 1, bias=False)  # half of that times the mean of |y - mean|
        nn.init.zeros_(self.about_mean.weight)
        nn.init.zeros_(self.about_spread.weight)
        self.register_buffer("phase", torch.zeros(()))  # 0 for the mean, 1 for the spread, 2 for the rest
        self.register_buffer("scale", torch.tensor(1.0 / math.sqrt(outputs)))
        self.register_buffer("least", torch.tensor(_LEAST_SPREAD))

    def for_plan(self, plan: Planned) -> None:
        """Read the clipping norm and the smallest spread above the noise from a plan."""
        self.scale.fill_(plan.clipping.norm / math.sqrt(self.about_mean.in_features))
        noise = 2 * plan.gradient_noise_multiplier / plan.expected_batch_size
        noise_floor = _OF_DISTANCE * noise / math.sqrt(_steps_of(plan.steps)[1])
        self.least.fill_(min(max(_LEAST_SPREAD, noise_floor), 1.0))

    def mean_and_spread(self) -> tuple[Tensor, Tensor]:
        """Return the mean and the spread of the targets, (k,) each, from the released weights."""
        mean = (self.about_mean.weight.detach()[0] / self.scale).clamp(-1.0, 1.0)
        spread = _OF_DISTANCE * 2 * self.about_spread.weight.detach()[0] / self.scale
        return mean, spread.clamp_min(self.least).clamp_max(1.0)

    def forward(self, inputs: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return (n, k) predictions, or (n,) losses if targets are given."""
        mean, spread = self.mean_and_spread()
        standard = self.layer(inputs)
        if targets is None:
            predictions: Tensor = mean + spread * standard
            return predictions
        y = targets.reshape(standard.shape)
        of_mean = -self.scale * self.about_mean(y).squeeze(-1)
        of_spread = -self.scale / 2 * self.about_spread((y - mean).abs()).squeeze(-1)
        error = (standard - (y - mean) / spread).square().sum(-1) / 2
        begun = torch.where(self.phase == 0, of_mean, of_spread)
        losses: Tensor = torch.where(self.phase == 2, error, 0.5 + begun - begun.detach())
        return losses

    def part_of(self, step: int, steps: int) -> tuple[int, Mapping[int, float]]:
        """Return the phase of a step, 0 for the mean, 1 for the spread, 2 for the linear layer, and rates."""
        mean, spread = _steps_of(steps)
        phase = 0 if step < mean else 1 if step < mean + spread else 2
        return phase, {0: 1 / mean, 1: 1 / spread}


def _steps_of(steps: int) -> tuple[int, int]:
    """Return how many of a run's steps release the mean, and how many release the spread."""
    both = max(2, round(steps * _SHARE))
    return both - both // 2, both // 2


class Calibrated(InPhases):
    """A linear classifier in training, calibrated so that its mean probabilities match the class shares.

    Clipping shrinks the gradients of a rare class most, because the model is most wrong about its records, so
    the class gets too small a probability.  A wider clipping norm would fix this, but its noise worsens the
    ranking of the records.  Therefore the first steps release the class shares, and the last steps train only
    the intercepts of the logits, whose gradients have a known norm and need no clipping.  With fewer than 50
    steps, or if no class is rare, all steps but the first train the layer.

    Args:
        layer: the model, (n, ...) to (n, k) logits, whose last module is a linear layer with a bias.
        classes: k, the number of classes.

    **Guarantee**

    * In the first steps the gradient of a record's cross-entropy is C (1/k - y) for its one-hot class y, and
      in the last steps it is r (p - y) for the model's probabilities p and factors r, of which the squares
      of the largest two add up to C².  Its norm is at most C.  In the other steps it is that of the layer.
      All these gradients are clipped, released and accounted for as usual.

    >>> model = Calibrated(Logistic(3, 2), 2)
    >>> model(torch.ones(1, 3)).detach(), model.released()
    (tensor([[0., 0.]]), Logistic(
      (0): Flatten(start_dim=1, end_dim=-1)
      (1): Linear(in_features=3, out_features=2, bias=True)
    ))
    """

    phase_of = MappingProxyType({"layer": 1, "about_shares": 0, "about_constants": 2})
    norm: Tensor
    least: Tensor
    reach: Tensor

    def __init__(self, layer: nn.Sequential, classes: int) -> None:
        super().__init__()
        self.layer = layer
        self.about_shares = nn.Linear(1, classes, bias=False)  # C times share - 1/k
        self.about_constants = nn.Linear(1, classes, bias=False)  # the logits' constants, divided by reach
        nn.init.zeros_(self.about_shares.weight)
        nn.init.zeros_(self.about_constants.weight)
        self.register_buffer("phase", torch.ones(()))  # 0 for the shares, 1 for the layer, 2 for constants
        self.register_buffer("norm", torch.ones(()))
        self.register_buffer("least", torch.zeros(()))
        self.register_buffer("reach", torch.ones(classes))

    def for_plan(self, plan: Planned) -> None:
        """Read public facts from a plan: its clipping norm, and the least share that exceeds its noise."""
        self.norm.fill_(plan.clipping.norm)
        records_of_noise = max(2.0, plan.gradient_noise_multiplier)
        self.least.fill_(min(2 * records_of_noise / plan.expected_batch_size, 1 / len(self.reach)))

    def shares(self) -> Tensor:
        """Return the class shares, (k,), from the released weights, at least the smallest above the noise."""
        shares = 1 / len(self.reach) + self.about_shares.weight.detach()[:, 0] / self.norm
        return shares.clamp_min(self.least).clamp_max(1.0)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (n, k) logits; in the first steps of training, logits of 0."""
        logits = self.layer(inputs)
        one = torch.ones_like(logits[:, :1])
        constants = self.reach * self.about_constants(one)
        if not self.training:
            return torch.as_tensor(logits + constants)
        shares = self.norm * self.about_shares(one)
        of_layer_or_constants = torch.where(
            self.phase == 1, logits + constants.detach(), logits.detach() + constants
        )
        return torch.where(self.phase == 0, shares - shares.detach(), of_layer_or_constants)

    def part_of(self, step: int, steps: int) -> tuple[int, Mapping[int, float]]:
        """Return the phase of a step, 0 for the shares, 1 for the layer, 2 for the intercepts, and rates.

        A step of the last phase is a Newton step for a model with equal probabilities for all records, where
        the second derivative by an intercept is the share of its class.  The second half are shorter, to
        average the noise.
        """
        # of the steps, so many release the shares of classes, and so many train the constants
        shares_of_steps = (_SHARE_OF_SHARES, _SHARE_OF_CONSTANTS) if steps >= _FEWEST else (0, 0)
        first, last = (math.ceil(steps * share) for share in shares_of_steps)
        phase = 0 if step < first else 1 if step < steps - last else 2
        if phase < 2:
            return phase, {0: 1 / max(1, first), 2: 0.0}
        shares = self.shares()
        # if no class is rare, noise in the constants would cost more than it gains
        if shares.min() > 1 / (2 * len(shares)):
            return 1, {0: 0.0, 2: 0.0}
        steepness = (shares.min() / shares).sqrt()
        longest = steepness.topk(2).values.square().sum()
        self.reach.copy_(self.norm * steepness / longest.sqrt())
        newton = longest / (self.norm.square() * shares.min())
        # the first half of these steps moves by the whole distance
        averaged = step - (steps - last) - last // 2
        return phase, {0: 0.0, 2: min(1.0, 2 / max(1, averaged + 2)) * float(newton)}

    def released(self) -> nn.Module:
        """Return the layer with the intercepts added to its bias."""
        layer = copy.deepcopy(self.layer)
        with torch.no_grad():
            last: Any = layer[-1]
            last.bias += self.reach * self.about_constants.weight[:, 0]
        return layer


def released(model: nn.Module) -> nn.Module:
    """Return the model to release and to evaluate from a model in training."""
    return model.released() if isinstance(model, Calibrated) else model


def standard_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    losses: Tensor = model(inputs, targets)
    return losses


Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Curve:
    """The contribution of one column to a model's output, at each value of the column."""

    # the column's name.  For a weekday, month or hour, the date column's name and that of the part.
    name: str
    kind: str  # "number", "date", "datetime" or "category"
    # for a category or a boolean, the declared values, (m,).  For a number, the ends of straight pieces: the
    # declared bounds, and between them each bin edge twice, for the value just below it and the value from it
    # on.
    x: tuple[float, ...] | tuple[str, ...] | tuple[dt.date, ...]
    # the contribution at each x, (m, k).  Its mean over the declared values, or over the range of a number,
    # is 0.
    y: Array
    other: Array | None = None  # the contribution of a value that is not declared, (k,); None for a number
    # the contribution of a missing cell, (k,); None if no feature marks missing cells
    missing: Array | None = None

    @property
    def importance(self) -> Array:
        """The range of the curve, (k,): its highest value minus its lowest."""
        ranges: Array = np.ptp(self.y, axis=0)
        return ranges


@dataclass(frozen=True, eq=False)
class AdditiveModel:
    """A constant, ``base`` (k,), plus ``curves`` in the order of the columns."""

    base: Array
    curves: tuple[Curve, ...]


@dataclass(frozen=True, eq=False)
class LinearModel:
    """The weights (k, f) and constants (k,) of a linear model.

    **Guarantee**

    * The methods compute only from these weights and public declarations.  For a private model they are
      post-processing, which costs no privacy.

    >>> encoder = Encoder({"age": Column(kind="integer", lower=0, upper=100, bins=[50]),
    ...                    "sex": Column(kind="category", values=("f", "m"))})
    >>> model = LinearModel(np.array([[1.0, 0.0, 4.0, 3.0, 1.0, 0.0]]), np.array([0.5]))
    >>> sums = model.curves(encoder)
    >>> sums.base.tolist(), [(curve.x, curve.y[:, 0].tolist()) for curve in sums.curves]
    ([4.5], [((0.0, 50.0, 50.0, 100.0), [-3.0, -2.0, 2.0, 3.0]), (('f', 'm'), [1.0, -1.0])])
    """

    weight: Array
    bias: Array

    @classmethod
    def of(cls, model: nn.Module) -> LinearModel | None:
        """Return the weights of a model that is linear in its (flattened) inputs, or None for other models.

        >>> LinearModel.of(nn.Sequential(nn.Flatten(), nn.Linear(3, 2))).weight.shape
        (2, 3)
        """
        match model:
            case nn.Linear(bias=Tensor()):
                return cls(_array(model.weight), _array(model.bias))
            case StandardLinear():
                mean, spread = map(_array, model.mean_and_spread())
                layer = cls.of(model.layer)
                return layer and cls(layer.weight * spread[:, None], mean + spread * layer.bias)
            case InPhases(
                about_ends=nn.Linear(), layer=nn.Module() as layer
            ):  # hazards, whose bins share these slopes
                return cls.of(layer)
            case LeastSquaresHead(normalise=False):
                return cls(*map(_array, model.affine()))
            case nn.Sequential():
                *before, last = model
                if all(isinstance(layer, nn.Flatten | nn.Identity) for layer in before):
                    return cls.of(last)
        return None

    def log_odds(self) -> LinearModel:
        """Return the model of log odds, for a model of logits.

        For two classes it has one output, the log odds of the second.  For three or more, it has the logit of
        each class minus the mean over the classes, which changes no probability.
        """
        if len(self.weight) == 2:
            return LinearModel(np.diff(self.weight, axis=0), np.diff(self.bias))
        return LinearModel(self.weight - self.weight.mean(0), self.bias - self.bias.mean())

    def in_units(self, bounds: Sequence[tuple[float, float]]) -> LinearModel:
        """Return the model in the targets' own units: it maps [-1, 1] to the declared ``bounds``."""
        low, high = np.array(bounds, dtype=np.float64).T
        half = (high - low) / 2
        return LinearModel(self.weight * half[:, None], low + (self.bias + 1) * half)

    def curves(self, encoder: Encoder) -> AdditiveModel:
        """Return the model's output as the sum of a constant and a curve for each column.

        Args:
            encoder: the encoder of the model's inputs, without text columns.

        Raises:
            InvalidInput: the number of inputs differs from the number of features, or the encoder has text.
        """
        if self.weight.shape[1] != len(encoder.features) or encoder.text is not None:
            raise InvalidInput(
                f"the model has {self.weight.shape[1]} inputs but the columns have {len(encoder.features)} "
                "features. Pass the encoder with which the model was trained; it must have no text columns."
            )
        base, curves, at = self.bias, list[Curve](), 0
        for name in encoder.inputs_of:
            column = encoder.columns[name]
            width = sum(1 for _ in feature_names(name, column))
            for curve, mean in _of_column(name, column, self.weight[:, at : at + width].T):
                base = base + mean
                curves.append(curve)
            at += width
        return AdditiveModel(base, tuple(curves))


def _array(weights: Tensor) -> Array:
    array: Array = weights.detach().cpu().double().numpy()
    return array


def _of_column(name: str, column: Column, weights: Array) -> Iterator[tuple[Curve, Array]]:
    """Yield the centred curves of a column from its weights (features, k), each with the subtracted mean."""
    # For a missing cell, all features are 0 except the last, which is the indicator.
    missing = None
    if column.missing == "indicator":
        weights, missing = weights[:-1], weights[-1]
    sizes = [len(PART_NAMES[part]) for part in column.parts]
    first, *parts = np.split(weights, np.cumsum([len(weights) - sum(sizes), *sizes])[:-1])
    if is_one_hot(column):
        yield _categorical(name, column.listed, first[:-1], first[-1], missing)
    elif column.kind == "boolean":
        yield _categorical(name, classes_of(column), np.concatenate([-first, first]), None, missing)
    else:
        yield _numeric(name, column, first, missing)
    nothing = None if missing is None else np.zeros_like(missing)
    for part, rows in zip(column.parts, parts, strict=True):
        yield _categorical(f"{name} {part}", PART_NAMES[part], rows, None, nothing)


def _categorical(
    name: str, x: tuple[str, ...], y: Array, other: Array | None, missing: Array | None
) -> tuple[Curve, Array]:
    mean: Array = y.mean(axis=0)
    return Curve(name, "category", x, y - mean, _minus(other, mean), _minus(missing, mean)), mean


def _numeric(name: str, column: Column, weights: Array, missing: Array | None) -> tuple[Curve, Array]:
    """Return the curve with slope weights[0], plus a constant for each bin if there are bins."""
    low, high = bounds_of(column)
    edges = np.array([low, *column.edges, high])
    x = np.repeat(edges, 2)[1:-1]
    bins = np.repeat(weights[1:], 2, axis=0) if column.edges else 0.0
    y = np.outer(2.0 * (x - low) / (high - low) - 1.0, weights[0]) + bins
    mean: Array = np.repeat(np.diff(edges) / (high - low), 2) / 2.0 @ y
    kind = column.kind if column.is_moment else "number"
    ends = (column.lower, column.upper) if column.is_moment else x.tolist()  # a date has no bins
    return Curve(name, kind, tuple(ends), y - mean, None, _minus(missing, mean)), mean


def _minus(value: Array | None, mean: Array) -> Array | None:
    return None if value is None else value - mean
