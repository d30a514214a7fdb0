"""MI-Face, a model inversion attack, which reconstructs a picture of a class from a classifier's confidence.

Fredrikson, Jha, Ristenpart, "Model Inversion Attacks that Exploit Confidence Information", CCS 2015, section
5, Algorithm 1.  The attacker knows the model and wants to see a class, such as a person's face.  It runs
gradient descent on

    c(x) = 1 - p_y(x) + AuxTerm(x),        x <- clip(x - λ ∇c(x))

and keeps the x with the lowest cost.  The result looks like the *class*.  If a class is a person, it looks
like the person.  If a class is a digit, it shows what such digits have in common, and privacy of single
records does not hide that.

Letters: p people attacked at once, c classes, h and w the height and width of a picture.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tacit.errors import InvalidInput, check_integer, check_real
from tacit.training.evaluation import evaluation_mode


@dataclass(frozen=True)
class Inversion:
    """The settings of Algorithm 1, with the defaults of the paper.

    * ``steps``: α, the largest number of steps.
    * ``learning_rate``: λ.
    * ``patience``: β.  A descent stops when its cost is at least the largest of the last β costs.
    * ``confidence``: the value of p_y at which a descent stops.
    * ``total_variation``, ``distance``: the weights of the two terms of AuxTerm.  These terms do not depend
      on the model.  They are the sum of the absolute differences of neighbouring pixels, and half of
      |x - start|².
    * ``low``, ``high``: the range to which x is clipped.

    Raises:
        InvalidInput: for a value out of its range.
    """

    steps: int = 5000
    learning_rate: float = 0.1
    patience: int = 100
    confidence: float = 0.99
    total_variation: float = 0.0
    distance: float = 0.0
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        check_integer("steps", self.steps, low=1)
        check_integer("patience", self.patience, low=1)
        check_real("learning_rate", self.learning_rate, low=0.0, open_low=True)
        check_real("confidence", self.confidence, low=0.0, high=1.0, open_low=True)
        check_real("total_variation", self.total_variation, low=0.0)
        check_real("distance", self.distance, low=0.0)
        check_real("low", self.low)
        check_real("high", self.high, low=self.low, open_low=True)


@dataclass(frozen=True, eq=False)
class Inverted:
    """The results of the attack on p people.

    ``pictures``, of shape (p, ...), has the best x of each descent.  ``confidence`` and ``cost``, of shape
    (p,), are p_y(x) and c(x) at this x.  ``steps``, of shape (p,), is the length of the descent."""

    pictures: Tensor
    confidence: Tensor
    cost: Tensor
    steps: Tensor


def mi_face(
    model: nn.Module,
    classes: Tensor,
    start: Tensor,
    *,
    settings: Inversion | None = None,
) -> Inverted:
    """Invert ``model`` for each of ``classes``, in descents that run in parallel and stop separately.

    A descent begins at ``start``, and ends there if the model is already confident.  ``patience`` has no
    effect in the first ``patience`` steps.

    Args:
        model: a model that maps (p, ...) to logits (p, c), and each row independently of the others.  It is
            in evaluation mode during the attack.
        classes: integers in [0, c), of shape (p,).
        start: what the attacker knows beforehand, such as the mean of *public* faces, of shape (p, ...).
        settings: the settings, by default those of the paper.  If the model's inputs are latent values, set
            ``low`` and ``high`` to their range.

    Raises:
        InvalidInput: if shapes do not fit, a class does not exist, or the cost is not finite.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False))
    >>> with torch.no_grad():
    ...     _ = model[1].weight.copy_(torch.tensor([[9.0, -9.0, 9.0, -9.0], [-9.0, 9.0, -9.0, 9.0]]))
    >>> inverted = mi_face(model, torch.tensor([0, 1]), torch.full((2, 2, 2), 0.5))
    >>> inverted.pictures.argmax(2).tolist(), bool((inverted.confidence >= 0.99).all())
    ([[0, 0], [1, 1]], True)
    """
    settings = settings or Inversion()
    if settings.total_variation and start.ndim < 3:
        raise InvalidInput(
            f"total_variation needs pictures (p, ..., h, w); start has shape {tuple(start.shape)}. Set "
            "total_variation to 0."
        )
    with evaluation_mode(model):
        _check_start(model, classes, start)
        return _walk(model, classes, start.detach(), settings)


def _walk(model: nn.Module, classes: Tensor, start: Tensor, s: Inversion) -> Inverted:
    """Run the descents for p people, and update only those that have not stopped."""
    best = Inverted(
        start.clone(),
        start.new_zeros(len(start)),
        start.new_full((len(start),), math.inf),
        torch.zeros(len(start), dtype=torch.int64, device=start.device),
    )
    going, x = torch.arange(len(start), device=start.device), start
    last = start.new_full((len(start), s.patience), math.inf)  # costs of the last β steps
    for step in range(s.steps + 1):
        cost, confidence, gradient = _cost(model, x, classes[going], start[going], s)
        best.steps[going] = step
        better = cost < best.cost[going]
        people = going[better]
        best.pictures[people] = x[better]
        best.confidence[people] = confidence[better]
        best.cost[people] = cost[better]
        stop = (confidence >= s.confidence) | (cost >= last[going].amax(1))
        last[going, step % s.patience] = cost
        going, x, gradient = going[~stop], x[~stop], gradient[~stop]
        if len(going) == 0:
            break
        x = (x - s.learning_rate * gradient).clamp(s.low, s.high)
    return best


def _cost(
    model: nn.Module, x: Tensor, y: Tensor, start: Tensor, s: Inversion
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute c(x) and p_y(x), each of shape (p,), and the gradient of c, which has the shape of x."""
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        p = model(x).softmax(1).gather(1, y[:, None])[:, 0]
        cost = 1.0 - p
        if s.total_variation:
            cost = cost + s.total_variation * _total_variation(x)
        if s.distance:
            cost = cost + s.distance * (x - start).square().flatten(1).sum(1) / 2.0
        (gradient,) = torch.autograd.grad(cost.sum(), x)
    if not bool(torch.isfinite(cost).all() and torch.isfinite(gradient).all()):
        raise InvalidInput(
            "the model's confidence or its gradient is not finite. Do its weights hold NaN, or does it "
            "expect inputs on another scale?"
        )
    return cost.detach(), p.detach(), gradient


def _total_variation(x: Tensor) -> Tensor:
    """Sum the absolute differences of neighbours along the last two axes, from (p, ..., h, w) to (p,)."""
    down, right = x.diff(dim=-2).abs().flatten(1), x.diff(dim=-1).abs().flatten(1)
    return down.sum(1) + right.sum(1)


def _check_start(model: nn.Module, classes: Tensor, start: Tensor) -> None:
    if classes.ndim != 1 or classes.dtype != torch.int64 or len(classes) == 0:
        raise InvalidInput(
            f"classes must be int64 numbers, at least one; got {classes.dtype} of shape "
            f"{tuple(classes.shape)}."
        )
    if not (start.is_floating_point() and bool(torch.isfinite(start).all())):
        raise InvalidInput("start must be finite floating-point numbers; scale pixels to [0, 1].")
    if start.ndim < 2 or len(start) != len(classes):
        raise InvalidInput(
            f"start must hold {len(classes)} records, one for each class; got shape {tuple(start.shape)}. "
            f"One start for all: start.expand({len(classes)}, *start.shape)."
        )
    try:
        with torch.no_grad():
            logits = model(start)
    except RuntimeError as problem:
        raise InvalidInput(
            f"the model does not take start, of shape {tuple(start.shape)}: {problem}. Give it the shape of "
            "the records that the model was trained on."
        ) from None
    if logits.ndim != 2 or len(logits) != len(start) or logits.shape[1] < 2:
        raise InvalidInput(
            f"the model must return logits (p, c), c >= 2; it returned shape {tuple(logits.shape)} for "
            f"p = {len(start)}."
        )
    if not (int(classes.min()) >= 0 and int(classes.max()) < logits.shape[1]):
        raise InvalidInput(
            f"classes must lie in [0, {logits.shape[1] - 1}]; got {int(classes.min())} to "
            f"{int(classes.max())}."
        )
