"""Clipping rules, which bound one record's influence on a step, without importing torch.

Letters: n records; G groups of parameters, each with a threshold C_g; C, the threshold if there is only one.
"""

# A rule gets the norms of a record's gradient and returns factors. An engine (:mod:`tacit.clipping.engine`)
# computes the norms and the weighted sum.  The rule also states the sensitivity of that sum, which
# ``noise_multiplier`` multiplies. Factors and sensitivity come from one object, so that they always agree.
#
# ==========================  ===================================  ============================
# rule                        factor of a record with norm r       sum changes by at most
# ==========================  ===================================  ============================
# :class:`FlatClipping`       min(1, C / r)                        C
# :class:`PerLayerClipping`   min(1, C_g / r_g) in each group      sqrt(sum_g C_g^2)
# :class:`AutomaticClipping`  C / (r + stability)                  C
# :class:`AdaptiveClipping`   min(1, C_t / r) in step t            C_t
# ==========================  ===================================  ============================
#
# Thresholds and ``stability`` are at least 1e-10: squares of smaller numbers underflow in float32, and norms
# could come out too small.
#
# "Changes" means that a record is added, removed or zeroed out. If a record is *replaced*, the sum changes by
# up to twice as much, and accountants include that factor.

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tacit.errors import InvalidInput, check_probability, check_real

if TYPE_CHECKING:
    from torch import Tensor


class ClippingRule(ABC):
    """The base class of clipping rules, which bound how much one record can change the sum of gradients.

    A rule multiplies each record's gradient by a factor, computed from the gradient's norm. It may divide the
    parameters into groups, and clip each group g separately, to a norm of at most C_g (the threshold).

    **Guarantee**

    * The clipped gradient of a record has l2 norm at most C_g in each group g, and so at most
      ``sensitivity(thresholds)`` over all parameters together.
    * If the norm of a record's gradient is infinite or NaN, the factor is 0.
    """

    if TYPE_CHECKING:

        @property
        def norm(self) -> float:
            """The l2 bound on one record's whole contribution, at the initial thresholds."""

    def groups(self, names: Sequence[str]) -> list[list[str]]:
        """Divide the parameter ``names`` into groups that are clipped separately; by default, one group."""
        return [list(names)]

    @abstractmethod
    def initial_thresholds(self, names: Sequence[str]) -> list[float]:
        """Return the thresholds of the first step, one for each group of parameters."""

    def sensitivity(self, thresholds: Sequence[float]) -> float:
        """Return sqrt(sum_g C_g^2), the largest l2 norm of one record's clipped gradient.

        ``thresholds`` are the C_g, one for each group of parameters.

        >>> FlatClipping(1.0).sensitivity([3.0, 4.0])
        5.0
        """
        return math.hypot(*(check_real("threshold", float(c), low=0.0, open_low=True) for c in thresholds))

    def factors(self, norms: Tensor, thresholds: Tensor) -> Tensor:
        """Return the factors min(1, C_g / norm) by which the gradients of n records are multiplied.

        Args:
            norms: (n, G) norms of each record's gradient in each group of parameters.
            thresholds: (G,) the threshold C_g of each group.

        Returns:
            (n, G) factors.
        """
        return (thresholds / norms).clamp(max=1.0).nan_to_num(nan=0.0)


@dataclass(frozen=True)
class FlatClipping(ClippingRule):
    """Clips each record's gradient, over all parameters together, to norm at most ``norm``.

    This is the clipping of DP-SGD (Abadi et al., 1607.00133, algorithm 1).

    >>> FlatClipping(1.5).initial_thresholds(["a.weight", "b.weight"])
    [1.5]
    """

    norm: float

    def __post_init__(self) -> None:
        _set_positive(self, "norm")

    def initial_thresholds(self, names: Sequence[str]) -> list[float]:
        """Return ``[norm]``, the only threshold."""
        del names
        return [self.norm]


@dataclass(frozen=True)
class PerLayerClipping(ClippingRule):
    """Clips the gradient of each module separately, its weight and bias together (1607.00133, section 3.1).

    Args:
        norm: the largest l2 norm of a record's clipped gradient, over all modules together.
        norms: pairs (module name, threshold), for every module that directly owns trainable parameters. The
            root of the sum of squared thresholds must be at most ``norm``. Default: norm / sqrt(G) for each
            of G modules.

    >>> PerLayerClipping(2.0).initial_thresholds(["a.weight", "a.bias", "b.weight", "c.weight", "d.weight"])
    [1.0, 1.0, 1.0, 1.0]
    """

    norm: float
    norms: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        _set_positive(self, "norm")
        norms: object = self.norms
        if not isinstance(norms, tuple | list) or any(len(tuple(pair)) != 2 for pair in norms):
            raise InvalidInput(
                f"norms must be pairs of module and bound; got {self.norms!r}. "
                'Write them as (("0", 0.5), ("2", 0.5)).'
            )
        pairs = tuple((str(m), check_real(f"norms[{m!r}]", c, low=_LEAST_NORM)) for m, c in self.norms)
        if len(dict(pairs)) != len(pairs):
            raise InvalidInput(f"norms names a module twice: {[m for m, _ in pairs]}. Give each module once.")
        if pairs and (total := math.hypot(*(c for _, c in pairs))) > self.norm * (1 + 1e-12):
            raise InvalidInput(
                f"norms add up to {total:g} (the root of the sum of squares), but the noise is scaled to "
                f"norm = {self.norm:g}. Raise norm to {total!r} or lower the norms."
            )
        object.__setattr__(self, "norms", pairs)

    def groups(self, names: Sequence[str]) -> list[list[str]]:
        """Return the parameter names by module, with the modules in the order of ``names``."""
        by_module: dict[str, list[str]] = {}
        for name in names:
            by_module.setdefault(_module_of(name), []).append(name)
        return list(by_module.values())

    def initial_thresholds(self, names: Sequence[str]) -> list[float]:
        """Return the threshold of each module: its number in ``norms``, or else norm / sqrt(modules)."""
        modules = [_module_of(group[0]) for group in self.groups(names)]
        if not self.norms:
            return [self.norm / math.sqrt(len(modules))] * len(modules)
        bounds = dict(self.norms)
        if set(bounds) != set(modules):
            raise InvalidInput(
                f"norms must name exactly the modules that own trainable parameters, {sorted(modules)}; "
                f"got {sorted(bounds)}."
            )
        return [bounds[module] for module in modules]


@dataclass(frozen=True)
class AutomaticClipping(ClippingRule):
    """Automatic clipping: brings the gradient of every record, large or small, close to the norm C.

    C is ``norm``. A gradient of norm r is multiplied by C / (r + ``stability``), so its new norm is C r / (r
    + stability) < C (Bu et al., 2206.07136, "AUTO-S"). ``stability`` is at least 1e-10.

    >>> AutomaticClipping(1.0).initial_thresholds(["a.weight", "b.weight"])
    [1.0]
    """

    norm: float
    stability: float = 0.01

    def __post_init__(self) -> None:
        _set_positive(self, "norm", "stability")

    def initial_thresholds(self, names: Sequence[str]) -> list[float]:
        """Return ``[norm]``, the only threshold."""
        del names
        return [self.norm]

    def factors(self, norms: Tensor, thresholds: Tensor) -> Tensor:
        """Return the factors C / (norm + stability) by which the gradients of n records are multiplied.

        Args:
            norms: (n, 1) norms of the records' gradients.
            thresholds: (1,) the threshold C.

        Returns:
            (n, 1) factors.
        """
        return (thresholds / (norms + self.stability)).nan_to_num(nan=0.0)


@dataclass(frozen=True)
class AdaptiveClipping(ClippingRule):
    """Flat clipping with a threshold that follows the norms of the gradients (Andrew et al., 1905.03871).

    Besides the noisy sum of gradients, each step releases a noisy count of the gradient norms up to the
    threshold. From this count, :meth:`move` computes the next threshold. The count does not raise epsilon.
    Instead, the sum gets more noise, so that both together cost as much as the sum alone with the noise
    multiplier that you set.

    Args:
        initial_norm: the threshold of the first step.
        quantile: the share of the norms that should be below the threshold.
        learning_rate: how fast the threshold moves.
        count_noise: the standard deviation of the noise on the count. Default: expected batch size / 20.
        low, high: the limits of the threshold.

    >>> AdaptiveClipping(1.0, quantile=0.5).initial_thresholds(["a.weight", "b.weight"])
    [1.0]
    """

    initial_norm: float
    quantile: float = 0.5
    learning_rate: float = 0.2
    count_noise: float | None = None
    low: float = 1e-6
    high: float = 1e6

    def __post_init__(self) -> None:
        _set_positive(self, "initial_norm", "learning_rate", "low", "high")
        object.__setattr__(self, "quantile", check_probability("quantile", self.quantile))
        if self.count_noise is not None:
            _set_positive(self, "count_noise")
        if not self.low <= self.initial_norm <= self.high:
            raise InvalidInput(
                f"initial_norm must be in [low, high] = [{self.low:g}, {self.high:g}]; "
                f"got {self.initial_norm!r}."
            )

    @property
    def norm(self) -> float:
        """The threshold of the first step, ``initial_norm``; later thresholds differ."""
        return self.initial_norm

    def initial_thresholds(self, names: Sequence[str]) -> list[float]:
        """Return ``[initial_norm]``, the threshold of the first step."""
        del names
        return [self.initial_norm]

    def count_std(self, expected_batch_size: float) -> float:
        """Return the standard deviation of the noise on the count, in records (see ``count_noise``)."""
        return expected_batch_size / 20 if self.count_noise is None else self.count_noise

    def move(self, threshold: float, noisy_fraction: float) -> float:
        """Return the next threshold. ``noisy_fraction`` is the noisy share of norms up to ``threshold``."""
        return next_threshold(
            threshold,
            noisy_fraction,
            quantile=self.quantile,
            learning_rate=self.learning_rate,
            low=self.low,
            high=self.high,
        )


def split_noise(noise_multiplier: float, count_noise: float) -> float:
    """Return z_g, the noise multiplier of the sum, such that sum and count together cost as much as z.

    z is ``noise_multiplier``. The count is a sum of bits minus 1/2, so one record changes it by 1/2, and its
    noise has standard deviation s_b = ``count_noise``. One record changes the sum by C, and its noise has
    standard deviation z_g C. Together they are one Gaussian mechanism with multiplier z if z^-2 = z_g^-2 +
    (2 s_b)^-2 (1905.03871, theorem 1).

    >>> round(split_noise(1.0, 5.0), 4)
    1.005
    """
    z = check_real("noise_multiplier", noise_multiplier, low=0.0)
    s_b = check_real("count_noise", count_noise, low=0.0, open_low=True)
    if z == 0.0:
        return 0.0
    if z >= 2 * s_b:
        raise InvalidInput(
            f"{z:g} must be below twice `count_noise`, {2 * s_b:g}: otherwise the noisy count that adapts "
            "the clipping norm costs more than the whole step may",
            argument="noise_multiplier",
            fix=f"Raise `count_noise` above {z / 2:g}.",
        )
    return float(z / math.sqrt((1 - z / (2 * s_b)) * (1 + z / (2 * s_b))))


def next_threshold(
    threshold: float,
    noisy_fraction: float,
    *,
    quantile: float,
    learning_rate: float,
    low: float,
    high: float,
) -> float:
    """Return C exp(-eta (b - gamma)), clamped to ``[low, high]`` (1905.03871, algorithm 1).

    C is ``threshold``, eta ``learning_rate``, gamma ``quantile``, and b ``noisy_fraction`` clamped to [0, 1].
    The latter is 1/2 + (sum of centred bits + noise) / expected batch size.

    >>> round(next_threshold(1.0, 1.0, quantile=0.5, learning_rate=0.2, low=1e-6, high=1e6), 4)
    0.9048
    """
    fraction = min(max(noisy_fraction, 0.0), 1.0)
    return min(max(threshold * math.exp(-learning_rate * (fraction - quantile)), low), high)


def _module_of(name: str) -> str:
    return name.rpartition(".")[0]


_LEAST_NORM = 1e-10
"""The least norm or stability. Squares that underflow in float32 lose up to 1.2e-38 per number. Of a gradient
of 1e10 numbers that is 1.2e-28 in its squared norm, 1.2e-8 of the square of this bound: less than a rounding.
"""


def _set_positive(rule: ClippingRule, *fields: str) -> None:
    for field in fields:
        bounds = field in ("norm", "initial_norm", "low", "stability")
        value = check_real(
            field, getattr(rule, field), low=_LEAST_NORM if bounds else 0.0, open_low=not bounds
        )
        object.__setattr__(rule, field, value)
