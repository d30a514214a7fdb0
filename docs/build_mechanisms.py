"""Write docs/reference/mechanisms.md: every accountant's epsilon of every mechanism, computed by the code.

Without arguments it writes the page.  With ``--check`` nothing is written, and the exit code is 1 if the page
does not match the code.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tacit.accounting import METHODS, account
from tacit.errors import UnsupportedEvent
from tacit.events import (
    Adjacency,
    ApproximateDP,
    BallsInBins,
    CyclicPoissonSampled,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    ExponentialMechanism,
    Gaussian,
    GaussianMixture,
    GroupPrivacy,
    Laplace,
    MatrixFactorization,
    Partitioned,
    PoissonSampled,
    PrivateSelection,
    RandomizedResponse,
    Repeat,
    Shuffled,
    ShuffledReports,
    SparseVector,
    TreeAggregation,
    TruncatedPoissonSampled,
    WithoutReplacement,
    WithReplacement,
    ZeroConcentratedDP,
)

PAGE = Path(__file__).parent / "reference" / "mechanisms.md"
DELTA = 1e-5

_DP_SGD = PoissonSampled(0.01, Gaussian(4.0))

MECHANISMS: dict[str, tuple[str, Event]] = {
    "Gaussian": ("σ = 4, 5 times", Repeat(Gaussian(4.0), 5)),
    "Laplace": ("b = 10, 50 times", Repeat(Laplace(10.0), 50)),
    "DiscreteGaussian": ("scale 10, 50 times", Repeat(DiscreteGaussian(10.0), 50)),
    "DiscreteLaplace": ("scale 10, 50 times", Repeat(DiscreteLaplace(10.0), 50)),
    "RandomizedResponse": ("noise 0.8, 4 categories, 10 times", Repeat(RandomizedResponse(0.8, 4), 10)),
    "ShuffledReports": ("10,000 people, ε = 2, 5 times", Repeat(ShuffledReports(10_000, 2.0), 5)),
    "ShuffledReports, response": (
        "the same, randomised response of 10 answers",
        Repeat(ShuffledReports(10_000, 2.0, 10), 5),
    ),
    "ApproximateDP, pure": ("ε = 0.1, 50 times", Repeat(ApproximateDP(0.1), 50)),
    "ApproximateDP": ("(0.1, 1e-8), 50 times", Repeat(ApproximateDP(0.1, 1e-8), 50)),
    "ZeroConcentratedDP": ("ρ = 0.001, 50 times", Repeat(ZeroConcentratedDP(0.001), 50)),
    "ExponentialMechanism": ("ε = 0.1, 50 times", Repeat(ExponentialMechanism(0.1), 50)),
    "SparseVector": ("ε = 0.1 + 0.2, 3 hits, 5 times", Repeat(SparseVector(0.1, 0.2, 3), 5)),
    "PoissonSampled Gaussian": ("q = 0.01, σ = 4, 1,000 times", Repeat(_DP_SGD, 1000)),
    "PoissonSampled Laplace": ("q = 0.1, b = 10, 50 times", Repeat(PoissonSampled(0.1, Laplace(10.0)), 50)),
    "PoissonSampled DiscreteGaussian": (
        "q = 0.1, scale 10, 50 times",
        Repeat(PoissonSampled(0.1, DiscreteGaussian(10.0)), 50),
    ),
    "PoissonSampled ApproximateDP": (
        "q = 0.1, ε = 0.1, 50 times",
        Repeat(PoissonSampled(0.1, ApproximateDP(0.1)), 50),
    ),
    "WithoutReplacement Gaussian": (
        "600 of 60,000, σ = 8, 1,000 times",
        Repeat(WithoutReplacement(60_000, 600, Gaussian(8.0)), 1000),
    ),
    "WithReplacement Gaussian": (
        "600 of 60,000, σ = 8, 10 times",
        Repeat(WithReplacement(60_000, 600, Gaussian(8.0)), 10),
    ),
    "TruncatedPoissonSampled Gaussian": (
        "as DP-SGD, at most 700 of 60,000, 1,000 times",
        Repeat(TruncatedPoissonSampled(0.01, 60_000, 700, Gaussian(4.0)), 1000),
    ),
    "BallsInBins Gaussian": ("100 bins, σ = 1, 1 epoch", BallsInBins(100, Gaussian(1.0))),
    "Partitioned Gaussian": ("10 batches, σ = 4, 5 epochs", Repeat(Partitioned(10, Gaussian(4.0)), 5)),
    "Shuffled Gaussian": ("10 batches, σ = 4, 5 epochs", Repeat(Shuffled(10, Gaussian(4.0)), 5)),
    "GaussianMixture": (
        "σ = 4, 0 to 2 records of a user at q = 0.01, 100 times",
        Repeat(GaussianMixture(4.0, (0.0, 1.0, 2.0), (0.9801, 0.0198, 0.0001)), 100),
    ),
    "GroupPrivacy of DP-SGD": ("3 records, 100 steps", GroupPrivacy(Repeat(_DP_SGD, 100), 3)),
    "GroupPrivacy of Laplace": ("3 records, b = 30, 50 times", GroupPrivacy(Repeat(Laplace(30.0), 50), 3)),
    "PrivateSelection, Poisson": (
        "best of 10 runs of 100 steps",
        PrivateSelection(Repeat(_DP_SGD, 100), "poisson", 10.0),
    ),
    "PrivateSelection, geometric": (
        "best of 10 runs of 100 steps",
        PrivateSelection(Repeat(_DP_SGD, 100), "negative-binomial", 10.0, 1.0),
    ),
    "TreeAggregation": ("σ = 10, 1,024 leaves, each record once", TreeAggregation(10.0, 1024)),
    "MatrixFactorization": (
        "2 bands, σ = 4, 4 epochs of 250 steps",
        MatrixFactorization(4.0, (1.0, 0.5), 1000, participations=4, separation=250),
    ),
    "CyclicPoissonSampled": (
        "2 bands, σ = 4, q = 0.02 in each half, 1,000 steps",
        CyclicPoissonSampled(0.02, 2, MatrixFactorization(4.0, (1.0, 0.5), 1000)),
    ),
}
"""The mechanisms by name: each as a description and as the event to account for."""

REASONS: dict[str, str] = {
    r"has no guarantee under adjacency 'add-remove'": "size is public",
    r"'gaussian' only supports Gaussian": "not Gaussian",
    r"'moments' only supports Gaussian": "not published",
    r"'zcdp' has no proven cost": "no ρ",
    r"'pld' if it samples Gaussian noise": "sampled exchange",
    r"method 'rdp' has no proven bound": "no divergence",
    r"method 'pld' has no proven bound": "no pair",
    r"composition theorems need an": "no (ε, δ)",
}
"""Short forms of the accountants' refusals."""


@dataclass(frozen=True)
class Claim:
    """A mechanism that another library supports, with our (mechanism, method, adjacency), or why none."""

    library: str
    what: str
    mechanism: str
    methods: tuple[str, ...]
    adjacencies: tuple[str, ...]
    left: str = ""


_AR, _RO, _ZO = "add-remove", "replace-one", "zero-out"
_ALL = (_AR, _RO, _ZO)

CLAIMS = (
    Claim("dp_accounting", "Gaussian", "Gaussian", ("rdp", "pld", "gaussian"), _ALL),
    Claim("dp_accounting", "Laplace", "Laplace", ("rdp", "pld"), (_AR, _RO)),
    Claim("dp_accounting", "discrete Laplace", "DiscreteLaplace", ("pld",), (_AR,)),
    Claim("dp_accounting", "discrete Gaussian", "DiscreteGaussian", ("pld",), (_AR,)),
    Claim("dp_accounting", "randomised response", "RandomizedResponse", ("rdp", "pld"), (_RO, _ZO)),
    Claim("dp_accounting", "pure ε", "ApproximateDP, pure", ("pld",), _ALL),
    Claim("dp_accounting", "(ε, δ)", "ApproximateDP", ("pld",), _ALL),
    Claim("dp_accounting", "exponential mechanism", "ExponentialMechanism", ("rdp",), _ALL),
    Claim("dp_accounting", "repeat and select", "PrivateSelection, geometric", ("rdp",), (_AR,)),
    Claim("dp_accounting", "repeat and select, Poisson", "PrivateSelection, Poisson", ("rdp",), (_AR,)),
    Claim("dp_accounting", "Poisson-sampled Gaussian", "PoissonSampled Gaussian", ("rdp", "pld"), (_AR,)),
    Claim("dp_accounting", "Poisson-sampled Gaussian", "PoissonSampled Gaussian", ("pld",), (_RO,)),
    Claim("dp_accounting", "Poisson-sampled Laplace", "PoissonSampled Laplace", ("pld",), (_AR,)),
    Claim(
        "dp_accounting",
        "fixed-size batches without replacement",
        "WithoutReplacement Gaussian",
        ("rdp",),
        (_RO,),
    ),
    Claim("dp_accounting", "truncated Poisson sampling", "TruncatedPoissonSampled Gaussian", ("pld",), _ALL),
    Claim("dp_accounting", "mixture of Gaussians", "GaussianMixture", ("pld",), (_AR,)),
    Claim("dp_accounting", "tree aggregation, one epoch", "TreeAggregation", ("rdp",), (_AR,)),
    Claim("dp_accounting", "zCDP", "ZeroConcentratedDP", ("rdp", "zcdp"), _ALL),
    Claim("dp_accounting", "basic and advanced composition", "ApproximateDP", ("basic", "strong"), _ALL),
    Claim(
        "dp_accounting",
        "sampled Gaussian as zCDP",
        "PoissonSampled Gaussian",
        (),
        (),
        "there is no proof; `rdp` and `pld` price this mechanism",
    ),
    Claim(
        "Opacus", "Poisson-sampled Gaussian, RDP and PRV", "PoissonSampled Gaussian", ("rdp", "pld"), (_AR,)
    ),
    Claim("Opacus", "Gaussian, RDP, PRV and GDP", "Gaussian", ("rdp", "pld", "gaussian"), (_AR,)),
    Claim(
        "Opacus",
        "GDP of Poisson and fixed-size sampling",
        "PoissonSampled Gaussian",
        (),
        (),
        "the central limit theorem gives no bound but an estimate, below the true ε for most settings",
    ),
    Claim("autodp", "Gaussian, Laplace: RDP, exact", "Laplace", ("rdp", "pld"), (_AR,)),
    Claim("autodp", "randomised response", "RandomizedResponse", ("rdp", "pld"), (_RO,)),
    Claim("autodp", "discrete Gaussian as zCDP", "DiscreteGaussian", ("zcdp",), (_AR,)),
    Claim("autodp", "exponential mechanism as zCDP", "ExponentialMechanism", ("zcdp",), (_AR,)),
    Claim("autodp", "sparse vector", "SparseVector", ("rdp", "pld"), (_AR,)),
    Claim(
        "autodp",
        "other variants of sparse vector",
        "SparseVector",
        (),
        (),
        "`SparseVector` is the variant with Laplace noise; state the guarantee of another variant as "
        "`ZeroConcentratedDP` or `ApproximateDP`",
    ),
    Claim("autodp", "Poisson-sampled Gaussian and Laplace", "PoissonSampled Laplace", ("rdp", "pld"), (_AR,)),
    Claim("autodp", "pure ε, sampled", "PoissonSampled ApproximateDP", ("rdp", "pld"), (_AR,)),
    Claim("autodp", "fixed-size batches", "WithoutReplacement Gaussian", ("rdp",), (_RO,)),
    Claim(
        "autodp",
        "sampling of any RDP mechanism",
        "PoissonSampled Gaussian",
        (),
        (),
        "not implemented if only the divergence of the mechanism is known; if its dominating pair is known, "
        "`pld` uses that pair",
    ),
    Claim("prv_accountant", "Poisson-sampled Gaussian", "PoissonSampled Gaussian", ("pld",), (_AR,)),
    Claim("prv_accountant", "Gaussian", "Gaussian", ("pld",), (_AR,)),
    Claim("prv_accountant", "Laplace", "Laplace", ("pld",), (_AR,)),
    Claim("prv_accountant", "pure ε", "ApproximateDP, pure", ("pld",), (_AR,)),
    Claim("jax_privacy", "Poisson-sampled Gaussian", "PoissonSampled Gaussian", ("pld",), (_AR, _RO)),
    Claim("jax_privacy", "truncated Poisson sampling", "TruncatedPoissonSampled Gaussian", ("pld",), _ALL),
    Claim("jax_privacy", "fixed-size batches", "WithoutReplacement Gaussian", ("rdp", "pld"), (_RO,)),
    Claim("jax_privacy", "user-level mixture", "GaussianMixture", ("pld",), (_AR,)),
    Claim("jax_privacy", "banded matrix factorisation", "MatrixFactorization", ("pld", "gaussian"), (_AR,)),
    Claim("jax_privacy", "banded, cyclic Poisson", "CyclicPoissonSampled", ("pld",), (_AR,)),
    Claim(
        "apple/ml-shuffling-amplification", "shuffled local reports", "ShuffledReports", ("pld",), (_RO, _ZO)
    ),
    Claim("PLD_accounting, jax_privacy", "balls in bins", "BallsInBins Gaussian", ("pld",), (_AR,)),
)

INTRODUCTION = """\
# Mechanisms and accountants

This page shows the ε that each accountant computes for each mechanism, so that you can see which accountants
cover your mechanism, and which of them is tightest. Each number is an upper bound on ε at δ = 1e-5, rounded
up, so a smaller number is better. `pld` is tight, with the exceptions below. (`python
docs/build_mechanisms.py` writes this page from the code, and a test recomputes every cell.)

Words in italics mean that the accountant refuses the mechanism. It raises `UnsupportedEvent`; the error says
why, and what to do. The words give the reason:

* *size is public*: the mechanism fixes the number of records, so it has no guarantee under an adjacency that
  lets this number change by one.
* *sampled exchange*: the paper of this accountant has no bound for a sampled mechanism under replace-one.
* *no pair*, *no divergence*, *no (ε, δ)*, *no ρ*: the accountant needs a dominating pair of distributions, a
  Rényi divergence, an (ε, δ) or a ρ of the mechanism. Tacit implements no proven one, or none is known.
* *not Gaussian*, *not published*: the accountant is not defined for this mechanism.

The figures of `pld` may not be tight for these mechanisms:

* `PrivateSelection`: no dominating pair is known. `pld` computes an upper bound from the curve of one run,
  and no lower bound.
* `ShuffledReports`: `pld` uses the pair of the published theorem, which real randomisers may not attain.
* `ExponentialMechanism` and `SparseVector`: `pld` uses a pair that covers every mechanism with this ε. For
  `ExponentialMechanism`, `rdp` is smaller.

The central limit theorem of Gaussian differential privacy is not an accountant here. It gives an estimate,
and for most settings the estimate is below the true ε.
"""


def cell(event: Event, method: str, adjacency: str) -> str:
    """Return epsilon at delta = 1e-5, rounded up to four digits, or the short form of the refusal."""
    try:
        value = account(event, adjacency=adjacency, method=method).epsilon(DELTA)
    except UnsupportedEvent as refusal:
        return f"*{_reason(str(refusal))}*"
    return rounded_up(value)


def _reason(message: str) -> str:
    for pattern, words in REASONS.items():
        if re.search(pattern, message):
            return words
    raise LookupError(f"no short words for the refusal: {message}")


def rounded_up(value: float) -> str:
    """Round up to four significant digits, but ignore an excess within floating-point error."""
    if not math.isfinite(value):
        return "∞"
    if value == 0.0:
        return "0"
    digits = 3 - math.floor(math.log10(value))
    return f"{math.ceil(value * 10.0**digits - 1e-6) / 10.0**digits:.4g}"


def lines() -> Iterator[str]:
    """Yield the lines of the page."""
    cells: dict[tuple[str, str, str], str] = {}
    yield INTRODUCTION
    for adjacency in Adjacency:
        yield f"## {adjacency.value}\n"
        yield "| mechanism | setting | " + " | ".join(METHODS) + " |"
        yield "|---|---|" + "---|" * len(METHODS)
        for name, (words, event) in MECHANISMS.items():
            row = [cell(event, method, adjacency.value) for method in METHODS]
            cells |= {
                (name, method, adjacency.value): text for method, text in zip(METHODS, row, strict=True)
            }
            yield f"| {name} | {words} | " + " | ".join(row) + " |"
        yield ""
    yield from _coverage(cells)


def _coverage(cells: dict[tuple[str, str, str], str]) -> Iterator[str]:
    yield "## What other libraries price\n"
    yield "The table lists the mechanisms that each of these libraries prices, and the accountants of Tacit"
    yield "that cover them: dp_accounting 0.6 and its development version, Opacus 1.6, autodp 0.2.3,"
    yield 'prv_accountant 0.2, jax_privacy 2.0, PLD_accounting 2.0. "Left" means that Tacit does not cover'
    yield "the mechanism; the reason follows.\n"
    yield "| library | mechanism | in Tacit |"
    yield "|---|---|---|"
    for claim in CLAIMS:
        wanted = [(claim.mechanism, method, at) for at in claim.adjacencies for method in claim.methods]
        refused = [key for key in wanted if cells[key].startswith("*")]
        if claim.left:
            here = f"left: {claim.left}"
        elif refused:
            here = "left: " + "; ".join(
                f"`{method}`, {at}: {cells[n, method, at]}" for n, method, at in refused
            )
        else:
            methods = ", ".join(f"`{method}`" for method in claim.methods)
            here = f"covered: {claim.mechanism}, {methods}, {', '.join(claim.adjacencies)}"
        yield f"| {claim.library} | {claim.what} | {here} |"
    yield ""


def main() -> int:
    """Write or check the page."""
    page = "\n".join(lines())
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page else 1
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
