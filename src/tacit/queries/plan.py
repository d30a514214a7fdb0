"""The plan of an answer: the integer sums, their noise, and the event that is charged."""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Protocol, TypeAlias, TypedDict, Unpack, final

from tacit.errors import InvalidInput, check_in, check_real, listing, needed
from tacit.events import (
    Adjacency,
    ApproximateDP,
    Compose,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    ExponentialMechanism,
    Repeat,
    ZeroConcentratedDP,
)
from tacit.ledger.policy import Policy
from tacit.noise.discrete import discrete_gaussian, discrete_laplace, exponential_choice
from tacit.queries.measures import (
    Bound,
    Choice,
    Measure,
    Pair,
    Rows,
    bound,
    choice_of,
    count_of_units,
    exact,
    gaussian_sigma,
    laplace_scale,
    measures_of,
    most_groups,
    pairs_of,
    rho_within,
    root_down,
    rounded_down,
    threshold,
)
from tacit.queries.query import Quantile, Query, check_query, query_to_json
from tacit.queries.statements import Statement, statement

# A query under a policy becomes *releases*. Each is a measure with its sensitivity to one unit and its noise.
# The event is built from the same releases that the private table performs, so price and mechanism always
# agree.

Key: TypeAlias = tuple[str | int | bool, ...]
"""The values of the ``by`` columns that make a group."""

_SCHEME = 1  # the version of requests, which changes if the method of answering does
_MOST_GROUPS = 100_000  # the most combinations of declared keys


class Privacy(TypedDict, total=False):
    """The privacy parameters of a query, as :meth:`PrivateTable.ask` and similar methods accept them."""

    epsilon: float | None  # the epsilon of the whole answer
    rho: float | None  # the zCDP parameter of the answer, instead of epsilon, for ``gaussian``
    # for ``gaussian`` with epsilon, the delta of the whole answer; a threshold uses half of it. For
    # ``laplace`` or rho, the delta of the threshold, which is needed if groups are not declared.
    delta: float | None
    # the distribution of the noise, ``laplace`` or ``gaussian``. Quantiles use the exponential mechanism
    # instead.
    mechanism: str


@dataclass(frozen=True, kw_only=True)
class _Parameters:
    """The parameters of :class:`Privacy` with their defaults; an unknown name is an error."""

    epsilon: float | None = None
    rho: float | None = None
    delta: float | None = None
    mechanism: str = "laplace"


@dataclass(frozen=True)
class Release:
    """The release of one measure: with noise, as a choice among its bins, or unchanged if it is public."""

    measure: Measure  # the integers to sum
    bound: Bound  # the sensitivity of the sum to one unit
    law: str  # ``laplace``, ``gaussian``, ``choice`` or ``public``
    # the scale of the noise that is added to ``bound.factor`` times the integers; for a choice, its epsilon;
    # for a public number, 0
    scale: Fraction
    # quantile, choice: for a choice, the quantile, and its candidates and losses
    quantile: Quantile | None = None
    choice: Choice | None = None
    # for Gaussian noise, the number of contributions by which neighbours differ: 2 under replace-one, else 1
    moved: int = 1

    @property
    def rho(self) -> float:
        """The rho of Gaussian noise, rounded up: the neighbours' squared distance over 2 sigma^2."""
        squared = self.moved**2 * self.bound.squared
        return math.nextafter(float(Fraction(squared) / (2 * self.scale**2)), math.inf)

    @property
    def event(self) -> Event:
        """The mechanism that this release performs."""
        match self.law:
            case "laplace":
                return DiscreteLaplace(float(self.scale), self.bound.whole)
            case "gaussian" if self.bound.squared < self.bound.whole**2:
                return Repeat(DiscreteGaussian(float(self.scale), self.bound.each), self.bound.places)
            case "gaussian" if self.bound.places == 1:
                return DiscreteGaussian(float(self.scale), self.bound.whole)
            case "gaussian":  # the coordinates' divergences add up, each as in 2004.00010, Theorem 4
                return ZeroConcentratedDP(self.rho)
            case "choice":
                return ExponentialMechanism(float(self.scale))
            case _:
                return Compose(())


@dataclass(frozen=True)
class Threshold:
    """The condition to show a group: ``gate``, its noisy number of units, is at least ``value``."""

    gate: Measure
    value: int
    delta: float


@dataclass(frozen=True)
class Compiled:
    """The plan of an answer under a policy, computed from public facts only.

    **Guarantee**

    * ``event`` describes ``releases`` and ``threshold`` exactly, under the policy's adjacency and unit.
    * The plan does not depend on the data.
    """

    query: Query  # query, policy: the question, and the policy of its data set
    policy: Policy
    releases: tuple[Release, ...]  # what will be released for every group
    # the trees that an engine runs; each returns the integers of its measures
    statements: tuple[Statement, ...]
    groups: tuple[Key, ...] | None  # the declared groups, in order; None if groups are found by a threshold
    threshold: Threshold | None  # the condition for a group to be shown, or None
    parameters: Mapping[str, str | None]  # the privacy parameters of the question, as texts
    # the delta at which a budget of (epsilon, delta) should charge the event as a whole; None if the budget
    # adds the epsilons and deltas of the releases
    charge_delta: float | None
    complete: Collection[str] = ()  # the columns without a missing cell

    @cached_property
    def event(self) -> Event:
        """The mechanism that the answer performs; ``Compose(())`` if it costs nothing."""
        events = [release.event for release in self.releases if release.law != "public"]
        if self.threshold is not None:
            events.append(ApproximateDP(0.0, self.threshold.delta))
        return events[0] if len(events) == 1 else Compose(tuple(events))

    def release(self, measure: Measure) -> Release:
        """Return the release that gives a measure with noise or as a public number, not as a choice."""
        return next(item for item in self.releases if measure in item.measure.gives and not item.quantile)

    def choice(self, quantile: Quantile) -> Release:
        return next(item for item in self.releases if item.quantile == quantile)

    @property
    def stated_cost(self) -> tuple[float, float] | None:
        """The (epsilon, delta) of the query; None if it states rho instead of epsilon."""
        if all(release.law == "public" for release in self.releases) and self.threshold is None:
            return 0.0, 0.0
        epsilon, delta = self.parameters["epsilon"], self.parameters["delta"]
        return None if epsilon is None else (float(epsilon), float(delta or 0.0))

    def request(self, version: str, *, block: str | None = None, attempt: int = 1) -> dict[str, Any]:
        """Return the canonical request: equal for equal queries on one content at one cost."""
        return {
            "scheme": _SCHEME,
            "query": json.loads(query_to_json(self.query)),
            "parameters": dict(self.parameters),
            "version": version,
            "block": block,
            "attempt": attempt,
        }


listing_privacy = listing(Privacy, vars(_Parameters()))


def compile_query(
    query: Query,
    policy: Policy,
    *,
    complete: Collection[str] = (),
    in_block: bool = False,
    **privacy: Unpack[Privacy],
) -> Compiled:
    """Plan the answer to a query, and its cost, from public facts only.

    ``complete`` are the columns in which registration found no missing cell. If ``in_block``, the rows are
    those of a block. Their number is not public, because an exchanged record may leave the block.
    """
    parameters = _Parameters(**privacy)
    check_query(query, policy)
    check_in("mechanism", parameters.mechanism, ("laplace", "gaussian"))
    groups = _declared_groups(query, policy)
    gate = count_of_units(policy)
    grouped, filtered = bool(query.by), query.where is not None or in_block
    counted = [] if groups is not None else [gate]
    if bound(Rows(), policy, groups=grouped, filtered=filtered).public:
        counted.append(Rows())
    pairs = pairs_of(query, policy, complete, counted)
    needed: list[tuple[Measure, Quantile | None]] = [
        (pairs.get(measure, measure), item if isinstance(item, Quantile) else None)
        for item in query.aggregates
        for measure in measures_of(item, policy, complete)
    ]
    if groups is None:
        needed.append((gate, None))
    bounds = {need: bound(need[0], policy, groups=grouped, filtered=filtered) for need in needed}

    # A query's epsilon (or rho) is divided equally among its different measures. A mean needs one (the pair
    # of a sum and a count), a variance or standard deviation two, and any other aggregate one. If two
    # aggregates need the same measure, it is measured once. The groups do not divide epsilon further, because
    # contribution bounding limits a unit's rows, and each row counts once, in one group.
    parts = sum(not limit.public for limit in bounds.values())
    noise = _noise_of(parameters, parts=parts, threshold=groups is None)
    releases = tuple(
        _release(measure, item, limit, noise, policy, groups=grouped)
        for (measure, item), limit in bounds.items()
    )

    # sums share a statement, and each measure with bins has its own
    measures = dict.fromkeys(
        part for release in releases if release.law != "public" for part in release.measure.parts
    )
    sums = [measure for measure in measures if not measure.binned]
    batches = [sums, *([measure] for measure in measures if measure.binned)]

    shown = None
    if groups is None:
        assert noise.threshold_delta is not None, "checked with the parameters"
        size = next(each for each in releases if each.measure == gate and each.quantile is None)
        least = threshold(
            noise.law,
            size.scale,
            each=size.bound.each,
            groups=most_groups(policy),
            delta=noise.threshold_delta,
        )
        shown = Threshold(gate, least, noise.threshold_delta)

    numbers = {name: value for name, value in vars(parameters).items() if name != "mechanism"}
    texts = {name: None if value is None else repr(float(value)) for name, value in numbers.items()}
    return Compiled(
        query=query,
        policy=policy,
        releases=releases,
        statements=tuple(statement(batch, query, policy) for batch in batches if batch),
        groups=groups,
        threshold=shown,
        parameters={"mechanism": parameters.mechanism, **texts},
        charge_delta=parameters.delta if parameters.mechanism == "gaussian" and parts else None,
        complete=complete,
    )


def _declared_groups(query: Query, policy: Policy) -> tuple[Key, ...] | None:
    """Return all groups that the policy declares, in its order; None if a column has no declared keys."""
    lists: list[tuple[str | int | bool, ...]] = []
    for name in query.by:
        column = policy.columns[name]
        keys = (False, True) if column.kind == "boolean" and column.values is None else column.values
        if keys is None:
            return None
        lists.append(tuple(keys))
    if math.prod(map(len, lists)) > _MOST_GROUPS:
        raise InvalidInput(
            f"grouping by {', '.join(query.by)} makes {math.prod(map(len, lists))} groups; at most "
            f"{_MOST_GROUPS} are allowed. Group by fewer columns."
        )
    return tuple(itertools.product(*lists))


# --- privacy parameters ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Noise:
    law: str
    share: Fraction
    threshold_delta: float | None


def _noise_of(parameters: _Parameters, *, parts: int, threshold: bool) -> _Noise:
    law, epsilon, rho, delta = parameters.mechanism, parameters.epsilon, parameters.rho, parameters.delta
    if delta is not None:
        check_real("delta", delta, low=0.0, high=1.0, open_low=True, open_high=True)
    if threshold and delta is None:
        raise InvalidInput(
            "delta is missing. The policy does not declare the groups, so a noisy threshold selects them; "
            "delta is its probability of failure. Set delta, such as 1e-9, or declare the values."
        )
    if law == "laplace":
        if epsilon is None and rho is None:
            raise InvalidInput("epsilon is missing: it is the cost of the whole answer, such as 0.5. Set it.")
        if epsilon is None or rho is not None:
            raise InvalidInput(
                "mechanism 'laplace' takes epsilon, not rho. Set epsilon, or use mechanism 'gaussian'."
            )
        if delta is not None and not threshold:
            raise InvalidInput(
                f"delta={delta!r} is not needed: Laplace noise for declared groups has delta = 0. Leave "
                "delta out."
            )
        return _Noise(law, exact("epsilon", epsilon) / max(parts, 1), delta)
    if (epsilon is None) == (rho is None):
        raise InvalidInput(
            "mechanism 'gaussian' needs either epsilon and delta, or only rho (the cost in zCDP)."
        )
    if rho is not None:
        return _Noise(law, exact("rho", rho) / max(parts, 1), delta if threshold else None)
    if delta is None:
        raise InvalidInput(
            "mechanism 'gaussian' with epsilon also needs delta. Set delta, or rho in place of epsilon."
        )
    converted = rho_within(exact("epsilon", epsilon), delta / 2 if threshold else delta)
    return _Noise(law, converted / max(parts, 1), delta / 2 if threshold else None)


def _release(
    measure: Measure, item: Quantile | None, limit: Bound, noise: _Noise, policy: Policy, *, groups: bool
) -> Release:
    """Return the release that spends one share of epsilon or rho."""
    # For a sensitivity D, epsilon = f D / b or rho = (f D)^2 / (2 sigma^2). f is 2 under replace-one, else 1.
    if limit.public:
        return Release(measure, limit, "public", Fraction(0))
    if item is not None:
        # an exponential choice of range epsilon is (epsilon^2 / 8)-zCDP (2004.07223, Lemma 3.2)
        share = noise.share if noise.law == "laplace" else root_down(8 * noise.share)
        epsilon = rounded_down(share)
        choice = choice_of(item, policy, epsilon, groups=groups)
        return Release(measure, limit, "choice", epsilon, item, choice)
    f = 2 if policy.relation is Adjacency.REPLACE_ONE else 1
    if noise.law == "laplace":
        return Release(measure, limit, "laplace", laplace_scale(f * limit.whole, noise.share))
    sigma = gaussian_sigma(f**2 * limit.squared, noise.share)
    return Release(measure, limit, "gaussian", sigma, moved=f)


# --- noise: only this section adds noise to integers -------------------------------------------------------
#
# Two samplers have one interface: Tacit's (:mod:`tacit.noise.discrete`) and OpenDP's, if it is installed.
# Both add exact discrete noise of the same distribution to exact integers. They differ only in the code that
# a user has to trust.

_LARGEST = 2**63 - 1  # the largest 64-bit integer


class Sampler(Protocol):
    """Adds independent discrete noise to integers.

    **Guarantee**

    * ``laplace`` returns value + k with P(k) proportional to exp(-|k| / scale). If the L1 distance between
      the vectors of neighbours is at most D, that is epsilon-DP with epsilon = D / scale.
    * ``gaussian`` returns value + k with P(k) proportional to exp(-k^2 / (2 sigma^2)). If the L2 distance
      is at most D, that is rho-zCDP with rho = (D / sigma)^2 / 2 (2004.00010, Theorem 4).
    """

    def laplace(self, values: Sequence[int], scale: Fraction) -> list[int]: ...

    def gaussian(self, values: Sequence[int], sigma: Fraction) -> list[int]: ...


@final
class OwnSampler:
    """Tacit's sampler: integer arithmetic on the system's random bits (2004.00010, Algorithms 1 to 3)."""

    def laplace(self, values: Sequence[int], scale: Fraction) -> list[int]:
        return [x + k for x, k in zip(values, discrete_laplace(scale, len(values)), strict=True)]

    def gaussian(self, values: Sequence[int], sigma: Fraction) -> list[int]:
        return [x + k for x, k in zip(values, discrete_gaussian(sigma**2, len(values)), strict=True)]


@final
class OpenDPSampler:
    """OpenDP's ``make_laplace`` and ``make_gaussian`` over 64-bit integers."""

    # This turns on OpenDP's feature "contrib" for the whole process. Values beyond 64 bits are clamped before
    # noise is added, which increases no distance between them. Results beyond 64 bits are clamped too, which
    # is post-processing. OpenDP's ``map`` returns the same cost as Tacit, rounded up by at most 2^-52 of it.
    def __init__(self) -> None:
        self._dp = needed("opendp.prelude", "opendp", "Noise drawn by OpenDP")
        self._dp.enable_features("contrib")

    def laplace(self, values: Sequence[int], scale: Fraction) -> list[int]:
        return self._noisy("laplace", scale, values)

    def gaussian(self, values: Sequence[int], sigma: Fraction) -> list[int]:
        return self._noisy("gaussian", sigma, values)

    def measurement(self, law: str, scale: Fraction) -> Any:
        """Return OpenDP's measurement."""
        # Its ``map(D)`` is epsilon for Laplace noise of L1 sensitivity D, and rho for Gaussian noise of L2
        # sensitivity D.
        if not 0 < scale <= Fraction(sys.float_info.max) or Fraction(float(scale)) != scale:
            raise InvalidInput(
                f"OpenDP's noise scale must be a positive float; got {scale!r}. Use the nearest larger "
                "float, or noise='own' (Tacit's noise), which allows any fraction."
            )
        dp = self._dp
        domain = dp.vector_domain(dp.atom_domain(T="i64"))
        if law == "laplace":
            return dp.m.make_laplace(domain, dp.l1_distance(T="i64"), scale=float(scale))
        return dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=float(scale))

    def _noisy(self, law: str, scale: Fraction, values: Sequence[int]) -> list[int]:
        measurement = self.measurement(law, scale)
        clamped = [min(max(x, -_LARGEST), _LARGEST) for x in values]
        return list(measurement(clamped)) if clamped else []


def sampler(name: str = "own") -> Sampler:
    choice = check_in("sampler", name, ("own", "opendp"))
    return OwnSampler() if choice == "own" else OpenDPSampler()


RawTable = dict[Measure, dict[Key, list[int]]]
"""The integers without noise, for each measure and group: one, or one per bin.

Never show, log or store them.
"""


@dataclass(frozen=True)
class Noisy:
    """The noisy integers of every release, for every shown group; these may be shown."""

    groups: tuple[Key, ...]  # the keys of the groups, in order
    # for each release, one tuple per group. It contains the noisy integers (one, or one per bin), multiplied
    # by ``bound.factor``. For a choice it contains the index of the chosen candidate, and for a public number
    # nothing.
    values: Mapping[Release, tuple[tuple[int, ...], ...]]


def collect(compiled: Compiled, results: Sequence[Sequence[tuple[Any, ...]]]) -> RawTable:
    """Collect the rows that the statements returned in one table; ``results`` is in their order."""
    # A sum that is larger than ``largest_table`` rows can give is clamped. Clamping never moves two sums
    # further apart.
    raw: RawTable = {}
    for run, rows in zip(compiled.statements, results, strict=True):
        for place, measure in enumerate(run.measures):
            table = raw.setdefault(measure, {})
            most = compiled.policy.largest_table * measure.largest
            for row in rows:
                key, number = row[: run.keys], int(row[run.keys + place])
                *group, at = key if measure.binned else (*key, 0)
                counts = table.setdefault(tuple(group), [0] * measure.bins)
                for bin_at in measure.bins_at(int(at)):
                    counts[bin_at] += min(max(number, -most), most)
    for pair in {release.measure for release in compiled.releases}:
        if isinstance(pair, Pair):
            low, high = (raw[part] for part in pair.parts)
            raw[pair] = {group: pair.mixed(*low[group], *high[group]) for group in low}
    return raw


def release_all(compiled: Compiled, raw: RawTable, sampler: Sampler) -> Noisy:
    """Add the noise that ``compiled`` specifies, and keep the groups that may be shown.

    **Guarantee**

    * The function performs ``compiled.event`` on ``raw``. It performs each release once for every declared
      group, whether or not the group has rows. If groups are not declared, it adds noise to the number of
      units of every group, and performs the other releases only for groups that pass the threshold.
    * The order of the groups does not depend on the data: it is the policy's order, or the keys are sorted.
    """
    groups = compiled.groups
    values: dict[Release, tuple[tuple[int, ...], ...]] = {}
    if compiled.threshold is not None:
        gate = compiled.release(compiled.threshold.gate)
        candidates = sorted(raw[gate.measure])
        noisy = _noisy_values(gate, candidates, raw, sampler)
        passing = [place for place, (count,) in enumerate(noisy) if count >= compiled.threshold.value]
        groups = tuple(candidates[place] for place in passing)
        values[gate] = tuple(noisy[place] for place in passing)
    assert groups is not None
    for release in compiled.releases:
        if release not in values:
            values[release] = _noisy_values(release, groups, raw, sampler)
    return Noisy(groups, values)


def _noisy_values(
    release: Release, groups: Sequence[Key], raw: RawTable, sampler: Sampler
) -> tuple[tuple[int, ...], ...]:
    if release.law == "public":
        return ((),) * len(groups)
    table, width = raw[release.measure], release.measure.bins
    counts = [table.get(group, [0] * width) for group in groups]
    if release.choice is not None:
        choice = release.choice
        return tuple((exponential_choice(choice.losses(each), choice.rate),) for each in counts)
    flat = [release.bound.factor * count for each in counts for count in each]
    add = sampler.laplace if release.law == "laplace" else sampler.gaussian
    noisy = add(flat, release.scale)
    return tuple(tuple(noisy[place * width : (place + 1) * width]) for place in range(len(groups)))
