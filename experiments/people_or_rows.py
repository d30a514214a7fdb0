"""Two ways to train on people with several rows each, compared: ``python -m experiments.people_or_rows``.

Both ways release sums of clipped gradients, at the same epsilon and delta.  The comparison is by the noise of
a step's mean gradient, for the same number of steps and of computed gradients.  One way draws B people and,
before it clips, averages the gradients of K rows of each person.  The other draws B K rows, clips each one
and accounts for a person as a group of rows (Charles et al., 2407.07737).

The noise is given in units of C, the clipping norm of rows.  For rows it is sigma / (B K).  For people it is
sigma / B if the rows of a person have equal gradients, because their mean then has the same norm.  If these
gradients are orthogonal, the norm of their mean is smaller by a factor sqrt(K).  The clipping norm can then
be smaller by the same factor, and the noise is sigma / (B sqrt(K)).

Symbols: N people, K rows of each, B people a step, T steps, sigma noise multiplier, C clipping norm.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from tacit.accounting import calibrate
from tacit.cli.terminal import print_whole, say, table_of_figures
from tacit.errors import InvalidInput, check_integer
from tacit.events import Adjacency, Event, Gaussian, GroupPrivacy, PoissonSampled, Repeat
from tacit.planner import PlanRequest
from tacit.rounding import NOISE_DIGITS

__all__ = ["Comparison", "compare_ways"]


@dataclass(frozen=True)
class Way:
    """One way to train on people.

    Attributes:
        draws: the unit that a step draws, "people" or "rows".
        batch_size: the expected number of people or rows in a step.
        noise_multiplier: sigma, the smallest that keeps the promise.
        noise_alike: the noise of a step's mean gradient, in units of C, if a person's rows have equal
            gradients.
        noise_unlike: the same noise if a person's rows have orthogonal gradients.

    >>> Way("people", 100, noise_multiplier=0.78, noise_alike=0.0078, noise_unlike=0.0078).batch_size
    100
    """

    draws: str
    batch_size: int
    noise_multiplier: float
    noise_alike: float
    noise_unlike: float


@dataclass(frozen=True)
class Comparison:
    """Compares drawing people with drawing rows.

    Attributes:
        rows_per_user: K.
        steps: T.
        people, rows: the two ways.
        group_bound: drawing rows, with the larger noise of the generic bound for groups, which protects one
            row at epsilon / K and makes no use of the sampling of several rows of a person.

    >>> question = PlanRequest(
    ...     records=10_000, unit="user", epsilon=4, delta=1e-6, adjacency="add-remove", steps=1000)
    >>> print(compare_ways(question, 100, 8).in_words())
    If the rows of one person are alike, draw rows: drawing people has 1.97 times the noise. If they have
    little in common, draw people: that has 0.70 times the noise of rows, with a clipping norm of C / 2.83.
    Public data show which case holds, or a run of each.
    """

    rows_per_user: int
    steps: int
    people: Way
    rows: Way
    group_bound: Way

    def as_data(self) -> dict[str, Any]:
        """Return everything as plain data, for JSON."""
        return asdict(self)

    def in_words(self) -> str:
        """Return text that names the way with less noise, and the condition under which it has less."""
        alike = self.people.noise_alike / self.rows.noise_alike
        unlike = self.people.noise_unlike / self.rows.noise_unlike
        if alike <= 1.0:
            return f"Draw people: that has at most {alike:.2f} times the noise of drawing rows."
        if unlike >= 1.0:
            return f"Draw rows: drawing people has at least {unlike:.2f} times the noise."
        return (
            f"If the rows of one person are alike, draw rows: drawing people has {alike:.2f} times the "
            f"noise. If they have little in common, draw people: that has {unlike:.2f} times the noise of "
            f"rows, with a clipping norm of C / {math.sqrt(self.rows_per_user):.3g}. Public data show "
            "which case holds, or a run of each."
        )


def compare_ways(question: PlanRequest, batch_size: int, rows_per_user: int) -> Comparison:
    """Compare drawing people with drawing their rows.

    Args:
        question: the promise and the data set; its number of ``records`` is the number of people.
        batch_size: B, at most N.
        rows_per_user: K.  If people are drawn, a step reads K rows of each.  If rows are drawn, a person
            keeps at most K rows in the data.

    Raises:
        InvalidInput: a size is out of range, or ``question`` has a risk instead of an epsilon.

    >>> question = PlanRequest(
    ...     records=10_000, unit="user", epsilon=4, delta=1e-6, adjacency="add-remove", steps=1000)
    >>> ways = compare_ways(question, 100, 8)
    >>> round(ways.people.noise_multiplier, 2), round(ways.rows.noise_multiplier, 2)
    (0.78, 3.17)
    """
    B = check_integer("batch_size", batch_size, low=1, high=question.records)
    K, T = check_integer("rows_per_user", rows_per_user, low=1), question.steps_of(B)
    rate, epsilon, delta = B / question.records, question.epsilon, question.delta
    if epsilon is None:
        raise InvalidInput(
            "the comparison needs an epsilon. The bound for groups is stated for an epsilon, not for a "
            "risk. Give epsilon."
        )

    def training(sigma: float) -> Event:
        return Repeat(Gaussian(sigma) if question.records == B else PoissonSampled(rate, Gaussian(sigma)), T)

    def least(most: float, delta: float, size: int) -> float:
        return calibrate(
            lambda sigma: GroupPrivacy(training(sigma), size),
            epsilon=most, delta=delta, adjacency=Adjacency.parse(question.adjacency),
            digits=NOISE_DIGITS,
        )  # fmt: skip

    def by_rows(sigma: float) -> Way:
        return Way("rows", B * K, sigma, sigma / (B * K), sigma / (B * K))

    of_people = least(epsilon, delta, 1)
    # a group of K is (eps, delta (e^eps - 1) / (e^{eps/K} - 1))-protected (Vadhan 2017, lemma 2.2)
    shared = delta * math.expm1(epsilon / K) / math.expm1(epsilon)
    return Comparison(
        K, T,
        people=Way("people", B, of_people, of_people / B, of_people / (B * math.sqrt(K))),
        rows=by_rows(least(epsilon, delta, K)),
        group_bound=by_rows(least(epsilon / K, shared, 1)),
    )  # fmt: skip


def command(
    users: Annotated[int, typer.Option(help="N, the number of people, a public figure.")],
    rows_per_user: Annotated[int, typer.Option(help="K, the rows of one of them.")],
    unit: Annotated[str, typer.Option(help="What one record is: user, patient.")],
    adjacency: Annotated[str, typer.Option(help="add-remove, replace-one or zero-out.")],
    epsilon: Annotated[float, typer.Option(help="The budget.")],
    delta: Annotated[float, typer.Option(help="The delta of the promise.")],
    batch_size: Annotated[int, typer.Option(help="B, the expected people of a step.")],
    steps: Annotated[int, typer.Option(help="T, the steps of the run.")],
) -> None:
    """Compare drawing people with drawing rows at one promise; reads no data."""
    question = PlanRequest(
        records=users, unit=unit, adjacency=adjacency, epsilon=epsilon, delta=delta, steps=steps
    )
    found = compare_ways(question, batch_size, rows_per_user)
    figures = ("batch", "σ", "noise, rows alike", "noise, rows unlike")
    table = table_of_figures(["a step draws"], figures, padding=0)
    names = {
        f"people, {rows_per_user} rows of each": found.people,
        f"rows, at most {rows_per_user} of each": found.rows,
        "rows, by the group bound": found.group_bound,
    }
    for name, way in names.items():
        noises = (f"{way.noise_alike:.2e}", f"{way.noise_unlike:.2e}")
        table.add_row(name, f"{way.batch_size:,}", f"{way.noise_multiplier:.4g}", *noises)
    print_whole(table)
    say(found.in_words())


if __name__ == "__main__":
    typer.run(command)
