"""A linear model in one private release: least squares from noisy second moments of the records.

This is sufficient statistics perturbation (Vu and Slavkovic, 2009; Wang, 1803.02596); Mehta et al.
(2211.13403) use it for a last layer on strong features.  Least squares needs only two sums over records,

    A = sum of x x^T,    M = sum of x y^T,    W = (A + r I)^-1 M.

One full-batch step of DP-SGD releases both.  The loss of a record is -(a <G x, x> + b <V x, y>), linear in
the weights G and V, so its gradient is -(a x x^T, b y x^T) for any weights.  A session can therefore provide
sampling, clipping, noise, ledger, audit slots and users with several rows as for any model.

Letters: n records; f inputs; d = f + 1 entries of x; k classes or targets; s, the step's noise multiplier.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.errors import InvalidInput, check_integer, check_real


class Moments(nn.Module):
    """The two sums as weights that start at zero, and a loss whose negative gradient is the contribution.

    Args:
        inputs: f, the number of values per record, each in [-1, 1].
        outputs: k, the number of entries per target.
        normalise: whether to scale each record, with its constant, to norm 1.  This uses the whole
            sensitivity, and a hyperplane still separates the same classes.  Otherwise all records are divided
            by the largest possible norm, sqrt(f + constant^2), and the model is linear in the inputs.
        constant: the last entry of x, which replaces an intercept: 1 for inputs in [-1, 1], less for inputs
            of norm 1.
        cross_share: b^2, the share of the squared sensitivity for V.  The rest is a^2.
        classes: whether targets are class numbers (n,), which :func:`simplex_codes` encodes.

    **Guarantee**

    * The gradient of a record's loss is -(a x x^T, b y x^T), with ``|x| <= 1`` and ``|y| <= 1`` for any
      record, so its norm is at most 1: ``a^2 |x|^4 + b^2 |y|^2 |x|^2 <= a^2 + b^2 = 1``.  Clipping at 1
      changes no gradient.
    * Under add-remove and zero-out the sums of neighbours therefore differ by norm at most 1.  Under
      replace-one they differ by at most 2, as accountants assume.

    Shapes: :meth:`forward` maps (n, f) inputs and (n, k) targets, or (n,) class numbers, to (n,) losses.

    >>> moments = Moments(3, 2, normalise=True)
    >>> moments(torch.ones(5, 3), torch.ones(5, 2)).shape
    torch.Size([5])
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
        """Return (n,) losses; their negative gradients are the records' contributions to the sums."""
        x, y = self.rows(inputs), _within_1(targets if self.codes is None else self.codes[targets])
        a, b = math.sqrt(1 - self.cross_share), math.sqrt(self.cross_share)
        losses: Tensor = -(a * (self.gram(x) * x).sum(1) + b * (self.cross(x) * y).sum(1))
        return losses

    def rows(self, inputs: Tensor) -> Tensor:
        """Return x, (n, f + 1): (n, f) inputs and a constant, scaled to norm at most 1."""
        return _with_constant(inputs, self.constant, normalise=self.normalise)

    def solve(self, *, records: float, noise_multiplier: float, ridge: float = 1.0) -> LeastSquaresHead:
        """Return the model, computed after the step that released the sums.  This is post-processing.

        The model predicts targets.  For classes it predicts logits that give the predicted probabilities to
        first order around 1/k.

        The noisy A is made symmetric, and its negative eigenvalues, which are noise, are set to 0.  Then
        ``ridge`` times s sqrt(2 d) / a is added to all eigenvalues.  The public number s sqrt(2 d) / a is the
        largest eigenvalue of the noise alone (Wigner's semicircle).

        Args:
            records: the public number by which the step divided the sums.
            noise_multiplier: s, the noise multiplier of the step.
            ridge: the multiple of the noise's largest eigenvalue that is added.
        """
        check_real("records", records, low=0.0, open_low=True)
        check_real("noise_multiplier", noise_multiplier, low=0.0, open_low=True)
        check_real("ridge", ridge, low=0.0, open_low=True)
        A = self.gram.weight.detach().double() / math.sqrt(1 - self.cross_share)
        M = self.cross.weight.detach().double() / math.sqrt(self.cross_share)
        values, vectors = torch.linalg.eigh((A + A.T) / 2)
        edge = math.sqrt(2 * len(A)) * noise_multiplier / math.sqrt(1 - self.cross_share) / records
        W: Tensor = (M @ vectors / (values.clamp_min(0.0) + ridge * edge)) @ vectors.T
        weight = W if self.codes is None else _of_logits(W)
        return LeastSquaresHead(weight, normalise=self.normalise, constant=self.constant)


class LeastSquaresHead(nn.Module):
    """The solved model, which maps (n, f) inputs to (n, k) outputs and is linear in x.

    >>> head = LeastSquaresHead(torch.tensor([[1.0, 0.0, 0.0]]), normalise=True, constant=0.0)
    >>> round(head(torch.tensor([[3.0, 4.0]])).item(), 4)
    0.6
    """

    def __init__(self, weight: Tensor, *, normalise: bool, constant: float) -> None:
        super().__init__()
        self.normalise, self.constant = normalise, constant
        self.linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        with torch.no_grad():
            self.linear.weight.copy_(weight)

    def affine(self) -> tuple[Tensor, Tensor]:
        """Return weights (k, f) and constants (k,) for inputs in [-1, 1], if ``normalise`` is off."""
        weight = self.linear.weight
        weight = weight / (_SAFE * math.sqrt(weight.shape[1] - 1 + self.constant**2))
        return weight[:, :-1], weight[:, -1] * self.constant

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (n, k) outputs."""
        outputs: Tensor = self.linear(_with_constant(inputs, self.constant, normalise=self.normalise))
        return outputs


def _with_constant(inputs: Tensor, constant: float, *, normalise: bool) -> Tensor:
    """Append a constant to (n, f) inputs and scale to norm at most 1; rows that are not finite become 0."""
    if inputs.ndim != 2:
        raise InvalidInput(f"inputs must have shape (n, f); got {tuple(inputs.shape)}.")
    clean = torch.where(inputs.isfinite().all(1, keepdim=True), inputs, 0.0)
    x = torch.cat([clean, torch.full_like(clean[:, :1], constant)], dim=1)
    if normalise:
        return F.normalize(x / x.abs().amax(1, keepdim=True), dim=1) / _SAFE  # squares do not overflow
    return _within_1(x / (_SAFE * math.sqrt(inputs.shape[1] + constant**2)))


_SAFE = 1 + 1e-6  # covers what float32 rounding may add to a norm of 1


def _within_1(rows: Tensor) -> Tensor:
    """Clip rows to norm 1; rows that are not finite become 0."""
    clean = torch.where(rows.isfinite().all(1, keepdim=True), rows, 0.0)
    cut: Tensor = clean / clean.norm(dim=1, keepdim=True).clamp_min(1.0)
    return cut


def simplex_codes(classes: int) -> Tensor:
    """Return a target of norm 1 for each class, (k, k): the vertices of a regular simplex.

    They are scaled one-hot vectors minus 1/k.  Their mean over equally likely classes is 0, so no part of the
    norm is spent on a mean.

    >>> simplex_codes(2)
    tensor([[ 0.7071, -0.7071],
            [-0.7071,  0.7071]])
    """
    check_integer("classes", classes, low=2)
    return (torch.eye(classes) - 1 / classes) * math.sqrt(classes / (classes - 1))


def _of_logits(W: Tensor) -> Tensor:
    """Convert (k, d) weights that predict simplex codes to weights that predict logits.

    Predicted codes are probabilities minus 1/k, up to scale.  Logits that are sqrt(k (k - 1)) times the code
    give these probabilities to first order around 1/k.  Subtracting the mean over classes changes no
    prediction.
    """
    classes = len(W)
    return (W - W.mean(0)) * math.sqrt(classes * (classes - 1))
