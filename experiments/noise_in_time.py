"""A comparison of the correlations of noise that one budget allows: ``python -m experiments.noise_in_time``.

All options release T noisy sums of B expected records.  Training adds up the sums of many steps, so the
options are compared by the noise of prefix sums: sigma times the prefix error of the correlation
(:mod:`tacit.correlation`), divided by B.  Sampling amplifies privacy, but allows only banded noise, with a
cycle of as many steps as there are bands.  Whole parts of the records in a fixed order, and streams, have no
amplification, but allow any correlation.

Symbols: N records, B batch size, T steps, b bands or buffers, sigma noise multiplier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import typer

from tacit.cli.terminal import console, print_whole, say, table_of_figures
from tacit.correlation import BLT, Banded, BandedInverse, Correlation, Tree
from tacit.correlation.forms import noise_of_sums
from tacit.errors import check_integer
from tacit.plan import Plan
from tacit.planner import PlanRequest
from tacit.sampling import CyclicPoissonSampling, FullBatch, PoissonSampling, Sampling

__all__ = ["Ways", "compare_in_time"]

_BANDS = (2, 4, 8, 16, 32, 64)
_DRAWS = (2, 4, 8)
_BUFFERS = (2, 4)
_KINDS: dict[str, type[Banded] | type[BandedInverse] | type[BLT]] = {
    "banded": Banded,
    "inverse": BandedInverse,
    "blt": BLT,
}
_NO_GAIN = 0.97  # at a larger share of the noise, another sampler is not worth it


@dataclass(frozen=True)
class InTime:
    """One option to add noise: a correlation and a sampler.

    Attributes:
        noise: "independent", "banded", "inverse", "blt" or "tree", as in ``[privacy] correlation``.
        size: b, the number of bands, draws per step, buffers, or steps of one tree; 1 for independent noise.
        batches: "poisson", "cyclic", "parts" (each step takes a whole part of the records) or "full".
        cycle: the number of parts; 1 if there are none.
        noise_multiplier: sigma, the smallest that keeps the promise.
        noise_of_sums: sigma times prefix error divided by B, in clipping norms.  It is the root mean square,
            over all steps, of the noise on the sum of the mean gradients so far.
        relative: ``noise_of_sums`` divided by that of independent noise on Poisson samples.
        memory: the noise stored between steps, in multiples of the trained weights (``kept`` in JSON).

    >>> option = InTime("banded", 8, "poisson", 1, noise_multiplier=1.2, noise_of_sums=0.1, relative=0.8,
    ...                 memory=8)
    >>> option.noise
    'banded'
    """

    noise: str
    size: int
    batches: str
    cycle: int
    noise_multiplier: float
    noise_of_sums: float
    relative: float
    memory: int


@dataclass(frozen=True)
class Ways:
    """All options, ordered from the least noise to the most.

    Attributes:
        batch_size: B.
        steps: T.
        samples: options that draw the records of a step at random; one has independent noise.
        parts: options that take the records in a fixed order, as a stream must.

    >>> plain = InTime("independent", 1, "poisson", 1, noise_multiplier=1.2, noise_of_sums=0.2, relative=1.0,
    ...                memory=0)
    >>> bands = InTime("banded", 8, "parts", 10, noise_multiplier=2.4, noise_of_sums=0.1, relative=0.5,
    ...                memory=8)
    >>> print(Ways(100, 40, samples=(plain,), parts=(bands,)).as_toml(stream=True))
    [privacy]
    sampling = "cyclic"
    cycle = 10
    correlation = "banded"
    bands = 8
    report_loss = false
    """

    batch_size: int
    steps: int
    samples: tuple[InTime, ...]
    parts: tuple[InTime, ...]

    def as_data(self) -> dict[str, Any]:
        """Return everything as plain data, for JSON."""
        data = asdict(self)
        for way in (*data["samples"], *data["parts"]):
            way["kept"] = way.pop("memory")
        return data

    def in_words(self) -> str:
        """Recommend the option with the least noise, for random draws and for a fixed order of records."""
        sampled, ordered = self.samples[0], self.parts[0]
        least = min(sampled, ordered, key=lambda way: way.relative)
        base = next(way for way in self.samples if way.noise == "independent")
        plain = next(way for way in self.parts if way.noise == "independent")
        if least.relative > _NO_GAIN:
            first = f"Take {_phrase(base)}: no other way has much less noise."
        else:
            first = f"Take {_phrase(least)}: {least.relative:.2f} of the noise of {_phrase(base)}."
        return (
            f"{first} If records come in a fixed order, as in a stream, take {_phrase(ordered)}: "
            f"{ordered.relative:.2f}; independent noise has {plain.relative:.2f} there."
        )

    def as_toml(self, *, stream: bool = False) -> str:
        """Return the lines of ``[privacy]`` for the option with the least noise."""
        way = self.parts[0] if stream else min(self.samples[0], self.parts[0], key=lambda w: w.relative)
        lines = ["[privacy]"]
        if way.batches in ("cyclic", "parts"):
            lines += ['sampling = "cyclic"', f"cycle = {way.cycle}"]
        if way.noise != "independent":
            lines.append(f'correlation = "{way.noise}"')
            key = {"banded": "bands", "inverse": "bands", "blt": "buffers", "tree": "restart_every"}.get(
                way.noise if (way.noise, way.size) != ("tree", self.steps) else ""
            )
            lines += [f"{key} = {way.size}"] if key is not None else []
            lines.append("report_loss = false")
        return "\n".join(lines)


def _phrase(way: InTime) -> str:
    noise = {
        "banded": f"{way.size} bands",
        "inverse": f"{way.size} draws a step (inverse)",
        "blt": f"{way.size} buffers (BLT)",
        "tree": f"trees of {way.size} steps (DP-FTRL)",
        "independent": "independent noise",
    }[way.noise]
    batches = {
        "poisson": "Poisson samples",
        "cyclic": f"samples of {way.cycle} parts that take turns",
        "parts": f"{way.cycle} whole parts that take turns",
        "full": "all records",
    }
    return f"{noise} on {batches[way.batches]}"


def compare_in_time(
    question: PlanRequest, batch_size: int, progress: Callable[[str, int, int], None] | None = None
) -> Ways:
    """Compare correlations of the noise of a run, at the same promise, batch size and number of steps.

    Args:
        question: the budget and the number of steps, epochs or gradients.
        batch_size: B, at most N.
        progress: called with (title, done, total).

    Raises:
        InvalidInput: the batch size is out of range.

    >>> question = PlanRequest(
    ...     records=60_000, unit="image", epsilon=3, delta=1e-5, adjacency="add-remove", steps=3)
    >>> ways = compare_in_time(question, 600)
    >>> ways.samples[0].noise, ways.samples[0].relative < 1.0
    ('banded', True)
    """
    B = check_integer("batch_size", batch_size, low=1, high=question.records)
    T = question.steps_of(B)
    ways = list(_ways(question.records, B, T))
    results: list[InTime] = []
    for done, (noise, size, sampling) in enumerate(ways):
        if progress is not None:
            progress("noise in time", done, len(ways))
        results.append(_cost_of(question, B, T, noise, size, sampling))
    plain = results[0].noise_of_sums
    results = [replace(way, relative=way.noise_of_sums / plain) for way in results]
    ordered = sorted(results, key=lambda way: way.relative)
    samples = tuple(way for way in ordered if way.batches in ("poisson", "cyclic"))
    parts = tuple(way for way in ordered if way.batches in ("parts", "full"))
    return Ways(B, T, samples or parts, parts)


def _ways(records: int, B: int, T: int) -> Iterator[tuple[str, int, Sampling]]:
    """Yield the options to compare, with independent noise on Poisson samples first."""
    cycle = max(1, round(records / B))
    whole: Sampling = CyclicPoissonSampling(1.0, cycle) if cycle > 1 else FullBatch()
    if records > B:
        yield "independent", 1, PoissonSampling(B / records)
    for b in _BANDS:
        if b < cycle and b <= T:
            yield "banded", b, CyclicPoissonSampling(b * B / records, b)
    yield "independent", 1, whole
    for b in _BANDS:
        if b <= T:
            yield "banded", b, whole
    for b in _DRAWS:
        if b <= T:
            yield "inverse", b, whole
    for d in _BUFFERS:
        if d <= T:
            yield "blt", d, whole
    for steps in sorted({min(cycle, T), T}):
        yield "tree", steps, whole


def _cost_of(question: PlanRequest, B: int, T: int, noise: str, size: int, sampling: Sampling) -> InTime:
    sampled = isinstance(sampling, CyclicPoissonSampling) and sampling.sampling_rate < 1.0
    times, apart = (1, 1) if sampled else sampling.participations_in(T) or (1, 1)
    form: Correlation | None = None
    if noise in _KINDS:
        form = _KINDS[noise].optimised(size, T, participations=times, separation=apart)
    elif noise == "tree":
        form = Tree() if size == T else Tree(size)
    cycle = sampling.cycle if isinstance(sampling, CyclicPoissonSampling) else 1
    plan = Plan.calibrate(
        epsilon=question.epsilon, delta=question.delta, records=question.records, unit=question.unit,
        advantage=question.advantage, true_positive_rate=question.true_positive_rate,
        false_positive_rate=question.false_positive_rate,
        batch_size=max(1, round(question.records / cycle)) if cycle > 1 and not sampled else B, steps=T,
        clipping=1.0, adjacency=question.adjacency, sampling=sampling, correlation=form,
        preparation=question.preparation, allow_large_delta=question.allow_large_delta,
    )  # fmt: skip
    batches = {PoissonSampling: "poisson", FullBatch: "full"}.get(
        type(sampling), "cyclic" if sampled else "parts"
    )
    return InTime(
        noise, size, batches, cycle, plan.noise_multiplier,
        plan.noise_multiplier * noise_of_sums(form, T) / plan.expected_batch_size,
        relative=1.0, memory=0 if form is None else form.kept,
    )  # fmt: skip


_BATCHES = {
    "poisson": "Poisson samples",
    "cyclic": "samples of {} parts",
    "parts": "{} whole parts",
    "full": "all",
}
_NOISE = {"banded": "banded, {}", "inverse": "inverse, {}", "blt": "BLT, {}", "tree": "tree, {} steps"}


def show(ways: Ways) -> None:
    """Print the ways to correlate the noise, and the run file's lines for the one with the least noise."""
    figures = ("σ", "noise of sums", "relative", "kept")
    table = table_of_figures(["noise", "a step takes"], figures, padding=0)
    everything = [*ways.samples, *(way for way in ways.parts if way not in ways.samples)]
    best = min(everything, key=lambda way: way.relative)
    for way in everything:
        table.add_row(*_cells_in_time(way), style="bold" if way is best else None)
    console.print(f"\nNoise in time, {ways.steps:,} steps of {ways.batch_size:,}:\n")
    print_whole(table)
    console.print()
    say(ways.in_words())
    console.print(f"\n{ways.as_toml()}", markup=False, highlight=False)
    if ways.as_toml(stream=True) != ways.as_toml():
        console.print("\nIn a fixed order:\n")
        console.print(ways.as_toml(stream=True), markup=False, highlight=False)


def _cells_in_time(way: InTime) -> list[str]:
    return [
        _NOISE.get(way.noise, way.noise).format(way.size),
        _BATCHES[way.batches].format(way.cycle),
        f"{way.noise_multiplier:.4g}",
        f"{way.noise_of_sums:.3g}",
        f"{way.relative:.2f}",
        f"{way.memory} × weights" if way.memory else "nothing",
    ]


def command(
    records: Annotated[int, typer.Option(help="N, a public figure.")],
    unit: Annotated[str, typer.Option(help="What one record is: image, patient.")],
    adjacency: Annotated[str, typer.Option(help="add-remove, replace-one or zero-out.")],
    epsilon: Annotated[float, typer.Option(help="The budget.")],
    delta: Annotated[float, typer.Option(help="The delta of the promise.")],
    batch_size: Annotated[int, typer.Option(help="B, the expected records of a step.")],
    steps: Annotated[int, typer.Option(help="T, the steps of the run.")],
) -> None:
    """Compare forms of noise, numbers of bands and samplers at one promise; reads no data."""
    question = PlanRequest(
        records=records, unit=unit, adjacency=adjacency, epsilon=epsilon, delta=delta, steps=steps
    )
    show(compare_in_time(question, batch_size))


if __name__ == "__main__":
    typer.run(command)
