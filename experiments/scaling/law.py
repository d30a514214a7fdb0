"""A scaling law with four terms for the loss of private language models, fitted to measured runs.

    L(M, T, r) = E + A (M / M0)^-a + D (T / T0)^-b + K (M / M0)^k / (1 + (r / r0)^-g)

The first three terms are those of Hoffmann et al., "Training compute-optimal large language models"
(2203.15556), with steps in place of tokens. The fourth is the loss that the noise adds. It is S-shaped in the
logarithm of the noise-batch ratio r, and larger for larger models. It is form (5) of McKenna et al., "Scaling
laws for differentially private language models" (2501.18914, appendix E), where the position and the width of
the S are fixed. Here they are fitted.

Symbols: M parameters of the model, T steps, B batch size in records, sigma noise multiplier, L loss in nats
per token. r = sigma / B is the noise-batch ratio: the noise on a step's mean gradient, in clipping norms.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.errors import InvalidInput, check_integer, check_real

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run, up to its end or an earlier step: its settings, and the loss that it reached.

    Attributes:
        model_size: M, the number of parameters of the model.
        steps: T.
        noise_batch_ratio: r = noise multiplier / batch size; 0 for a run without noise.
        loss: the cross-entropy on records that were not trained on, in nats per token.
        source: where the numbers come from: a file, or a paper with its table.

    Raises:
        InvalidInput: if a value is not finite, or not positive (r may be 0).

    >>> Run(model_size=1_000_000, steps=2_000, noise_batch_ratio=1e-4, loss=4.2, source="runs/17").loss
    4.2
    """

    model_size: float
    steps: float
    noise_batch_ratio: float
    loss: float
    source: str

    def __post_init__(self) -> None:
        for name in ("model_size", "steps", "loss"):
            object.__setattr__(self, name, check_real(name, getattr(self, name), low=0.0, open_low=True))
        ratio = check_real("noise_batch_ratio", self.noise_batch_ratio, low=0.0)
        object.__setattr__(self, "noise_batch_ratio", ratio)
        if not str(self.source).strip():
            raise InvalidInput(
                "source must not be empty. Say where the figures of the run are from, such as a file."
            )


@dataclass(frozen=True)
class Range:
    """The range of the measured runs: the least and the largest value of each argument, both included."""

    model_size: tuple[float, float]
    steps: tuple[float, float]
    noise_batch_ratio: tuple[float, float]

    def in_words(self) -> str:
        """Describe the range in words.

        >>> Range((4.6e6, 3.3e8), (1800, 110_000), (3.5e-7, 0.0026)).in_words()
        'models of 4.6M to 330M parameters, 1,800 to 110,000 steps, noise-batch ratios of 3.5e-07 to 0.0026'
        """
        (small, large), (short, long), (quiet, loud) = self.model_size, self.steps, self.noise_batch_ratio
        return (
            f"models of {parameters(small)} to {parameters(large)} parameters, {short:,.0f} to {long:,.0f} "
            f"steps, noise-batch ratios of {quiet:.2g} to {loud:.2g}"
        )


@dataclass(frozen=True)
class Quality:
    """The relative errors of the losses that a scaling law predicts: 0.01 is 1 %.

    Attributes:
        runs: the number of runs to which the law was fitted.
        typical: the root mean square of (predicted - measured) / measured.
        largest: the largest absolute value of these errors.
        held_out: the root mean square over held-out runs, in ten-fold cross-validation.
    """

    runs: int
    typical: float
    largest: float
    held_out: float


@dataclass(frozen=True, kw_only=True)
class Law:
    """A scaling law: the expected loss as a function of model size, steps and noise-batch ratio.

    Attributes:
        irreducible: E.
        size_loss, size_exponent: A, a.
        steps_loss, steps_exponent: D, b.
        noise_loss, noise_size_exponent, noise_exponent, noise_midpoint: K, k, g, r0.
        model_size, steps: M0 and T0, at which A, D and K are stated.
        sequence_length: the number of tokens per record in the runs to which the law was fitted.
        range: the range of these runs; :meth:`loss` refuses arguments beyond it.
        quality: the errors of the fit.
        source: where the runs come from.

    >>> from experiments.scaling.published import published_law
    >>> round(published_law().loss(model_size=17e6, steps=9_600, noise_batch_ratio=5.1e-5), 1)
    3.7
    """

    irreducible: float
    size_loss: float
    size_exponent: float
    steps_loss: float
    steps_exponent: float
    noise_loss: float
    noise_size_exponent: float
    noise_exponent: float
    noise_midpoint: float
    model_size: float
    steps: float
    sequence_length: int
    range: Range
    quality: Quality
    source: str

    def __post_init__(self) -> None:
        for name in ("irreducible", "size_loss", "steps_loss", "noise_loss"):
            check_real(name, getattr(self, name), low=0.0)
        for name in ("size_exponent", "steps_exponent", "noise_exponent", "noise_midpoint", "model_size"):
            check_real(name, getattr(self, name), low=0.0, open_low=True)
        check_real("steps", self.steps, low=0.0, open_low=True)
        check_real("noise_size_exponent", self.noise_size_exponent)
        check_integer("sequence_length", self.sequence_length, low=1)

    @classmethod
    def fit(cls, runs: Iterable[Run], *, sequence_length: int, source: str) -> Law:
        """Fit a scaling law to measured runs.

        The fit compares logarithms, so that an error of 1 % counts the same for large and small losses.
        Outliers with errors beyond 5 % have less weight.

        Args:
            runs: at least 12 runs, covering three or more model sizes, numbers of steps and ratios above 0.
                Intermediate losses of one run may be given as runs of fewer steps.
            sequence_length: the number of tokens per record in these runs.
            source: where the runs come from; a plan prints it.

        Raises:
            InvalidInput: if there are too few runs, or if they differ too little to tell the terms apart.
        """
        from experiments.scaling.fitting import fit_coefficients  # the import of scipy.optimize is slow

        measured = tuple(runs)
        _check(measured)
        sizes, steps, ratios, losses = (
            np.array([getattr(run, name) for run in measured])
            for name in ("model_size", "steps", "noise_batch_ratio", "loss")
        )
        coefficients, quality = fit_coefficients(sizes, steps, ratios, losses)
        return cls(
            **coefficients,
            sequence_length=sequence_length,
            range=Range(_ends(sizes), _ends(steps), _ends(ratios)),
            quality=Quality(len(measured), **quality),
            source=source,
        )

    def loss(
        self, *, model_size: float, steps: float, noise_batch_ratio: float, extrapolate: bool = False
    ) -> float:
        """Compute L, in nats per token.

        Args:
            model_size: M.
            steps: T.
            noise_batch_ratio: r; 0 is training without noise. A ratio below the least measured one counts as
                the least, so that the loss is too large rather than too small.
            extrapolate: allow arguments beyond the range.

        Raises:
            InvalidInput: if an argument is beyond the range, and ``extrapolate`` is not set.
        """
        for name, value in (("model_size", model_size), ("steps", steps)):
            check_real(name, value, low=0.0, open_low=True)
        check_real("noise_batch_ratio", noise_batch_ratio, low=0.0)
        beyond = self.beyond(model_size, steps, noise_batch_ratio)
        if beyond and not extrapolate:
            raise InvalidInput(
                f"the scaling law was measured for {self.range.in_words()}; {' and '.join(beyond)}. Choose "
                "within the range, fit a law to your own runs by Law.fit, or set extrapolate=True and take "
                "the answer as a guess."
            )
        return float(self.losses(model_size, steps, noise_batch_ratio))

    def losses(self, model_size: ArrayLike, steps: ArrayLike, noise_batch_ratio: ArrayLike) -> Floats:
        """Compute L for arrays that broadcast together, without checking the range."""
        sizes = np.asarray(model_size, dtype=float) / self.model_size
        count = np.asarray(steps, dtype=float) / self.steps
        least = self.range.noise_batch_ratio[0]
        ratios = np.maximum(np.asarray(noise_batch_ratio, dtype=float), least) / self.noise_midpoint
        with np.errstate(divide="ignore"):  # a ratio of 0, if runs without noise were measured
            noise = 1.0 / (1.0 + ratios**-self.noise_exponent)
        loss: Floats = (
            self.irreducible
            + self.size_loss * sizes**-self.size_exponent
            + self.steps_loss * count**-self.steps_exponent
            + self.noise_loss * sizes**self.noise_size_exponent * noise
        )
        return loss

    def beyond(self, model_size: float, steps: float, noise_batch_ratio: float) -> tuple[str, ...]:
        """Describe each argument outside the range. A ratio below the range counts as inside."""
        words = []
        if not _within(model_size, self.range.model_size):
            words.append(f"{parameters(model_size)} parameters are outside")
        if not _within(steps, self.range.steps):
            words.append(f"{steps:,.0f} steps are outside")
        if noise_batch_ratio > self.range.noise_batch_ratio[1] * _EDGE:
            words.append(f"a noise-batch ratio of {noise_batch_ratio:.3g} is outside")
        return tuple(words)

    def as_data(self) -> dict[str, Any]:
        """Return everything as plain data, for JSON; :meth:`from_data` reads it back."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Law:
        """Read the scaling law that :meth:`as_data` wrote.

        >>> from experiments.scaling.published import published_law
        >>> Law.from_data(published_law().as_data()) == published_law()
        True
        """
        names = {field.name for field in fields(cls)}
        if set(data) != names:
            odd = ", ".join(sorted(set(data) ^ names))
            raise InvalidInput(
                f"a scaling law has the fields {', '.join(sorted(names))}; missing or unknown: {odd}."
            )
        ends = {name: tuple(pair) for name, pair in data["range"].items()}
        return cls(**(data | {"range": Range(**ends), "quality": Quality(**data["quality"])}))


_FEWEST_RUNS = 12  # three more than the number of coefficients, so that errors show a bad fit
_FEWEST_VALUES = 3  # of each argument: two would not determine the shape of a term
_EDGE = 1.0 + 1e-9  # the ends belong to the range, also after rounding by a logarithm and back


def _check(runs: tuple[Run, ...]) -> None:
    for run in runs:
        if not isinstance(run, Run):
            raise InvalidInput(f"runs must be a list of Run(model_size=..., ...); got {run!r}.")
    if len(runs) < _FEWEST_RUNS:
        raise InvalidInput(
            f"a scaling law needs at least {_FEWEST_RUNS} runs; got {len(runs)}. It has nine coefficients. "
            "Give more runs; losses at intermediate steps of one run count as runs of fewer steps."
        )
    for name, words in (
        ("model_size", "model sizes"),
        ("steps", "numbers of steps"),
        ("noise_batch_ratio", "noise-batch ratios above 0"),
    ):
        values = {getattr(run, name) for run in runs} - {0.0}
        if len(values) < _FEWEST_VALUES:
            raise InvalidInput(
                f"a scaling law needs at least {_FEWEST_VALUES} different {words}; got {len(values)}. Fewer "
                "do not show how the loss depends on them. Add runs with other values."
            )


def _ends(values: Floats) -> tuple[float, float]:
    return float(np.min(values)), float(np.max(values))


def _within(value: float, ends: tuple[float, float]) -> bool:
    return ends[0] / _EDGE <= value <= ends[1] * _EDGE


def parameters(count: float) -> str:
    """Format a model size for people.

    >>> parameters(4.6e6), parameters(335e6), parameters(1.04e9), parameters(800)
    ('4.6M', '335M', '1.04B', '800')
    """
    for scale, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= 0.9995 * scale:
            return f"{count / scale:.3g}{letter}"
    return f"{count:.3g}"
