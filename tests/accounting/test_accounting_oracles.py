"""lower <= truth <= upper on every setting of oracle_values.json, and how much is left between them.

``make_oracle_values`` wrote the file with oracles that share no code with Tacit (``oracle_inversion``), and
with what dp_accounting and prv_accountant say at their defaults.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np
import oracle_inversion as oracles
import pytest
from priced import curve_of

from tacit.accounting import PrivacyCurve, account
from tacit.accounting.transform import EXTENDED
from tacit.events import Compose, Gaussian, Laplace, PoissonSampled, Repeat

TIGHT = 1e-6  # (upper - lower) / upper where sigma >= .7 and T >= 100
LOOSE = 1e-3  # for every other setting
# sums in doubles are too short for tiny sampling rates and many steps
WIDER = dict.fromkeys(("hand-20", "hand-59", "hand-64", "random-0092"), 0.0 if EXTENDED else 1e-4)
REPLACED = 1e-6  # under replace-one
INVERSE = 2e-2  # of delta
TWO_STEPS = 1e-8  # of epsilon, on a grid as theirs
CLOSED = 1e-12  # of epsilon, where there is a closed form

HERE = Path(__file__).parent


def _read(file: str) -> dict[str, dict[str, Any]]:
    settings = json.loads((HERE / file).read_text("utf-8"))["settings"]
    return {setting["id"]: setting for setting in settings}


BY_ID, PEERS = _read("oracle_values.json"), _read("oracle_peers.json")
DATA = list(BY_ID.values())
EACH = pytest.mark.parametrize("name", list(BY_ID))


@cache
def _curve(name: str) -> PrivacyCurve:
    setting = BY_ID[name]
    parts = (Repeat(PoissonSampled(q, Gaussian(sigma)), count) for q, sigma, count in setting["parts"])
    return account(Compose(tuple(parts)), adjacency=setting["adjacency"])


@cache
def _bounds(name: str) -> tuple[float, float]:
    return _curve(name).epsilon_bounds(BY_ID[name]["delta"])


def _truth(name: str) -> tuple[Decimal, Decimal]:
    """epsilon, and by how much the oracle may be off: its spread, and the digits that were written."""
    setting = BY_ID[name]
    epsilon = Decimal(setting["epsilon"])
    spread = Decimal(setting["directions"][setting["way"]]["spread"])
    return epsilon, epsilon * (2 * spread + Decimal("1e-18"))


@pytest.mark.thorough(cases=40)
@pytest.mark.untraced
@EACH
def test_bracket_encloses_the_truth(name: str) -> None:
    lower, upper = _bounds(name)
    epsilon, slack = _truth(name)
    assert Decimal(lower) <= epsilon + slack
    assert Decimal(upper) >= epsilon - slack


@pytest.mark.thorough(cases=40)
@pytest.mark.untraced
@EACH
def test_bracket_is_narrow(name: str) -> None:
    lower, upper = _bounds(name)
    sampled = [(sigma, count) for q, sigma, count in BY_ID[name]["parts"] if q < 1.0]
    easy = all(sigma >= 0.7 for sigma, _ in sampled) and sum(count for _, count in sampled) >= 100
    limit = (
        LOOSE if sampled and not easy else REPLACED if BY_ID[name]["adjacency"] == "replace-one" else TIGHT
    )
    assert upper - lower <= max(limit, WIDER.get(name, 0.0)) * upper


@pytest.mark.thorough(cases=40)
@pytest.mark.parametrize("name", [name for name in BY_ID if name in PEERS])
def test_never_looser_than_the_others(name: str) -> None:
    says = PEERS[name]
    theirs = [says["google"], *(says["prv"][1:] if isinstance(says.get("prv"), list) else [])]
    truth, upper = float(_truth(name)[0]), _bounds(name)[1]
    steps = sum(count for _, _, count in BY_ID[name]["parts"])
    for bound in theirs:
        if isinstance(bound, float) and bound >= truth:  # those below it are wrong, and ours may not follow
            assert upper <= bound * (1.0 + (CLOSED if steps >= 3 else TWO_STEPS))


@pytest.mark.thorough(cases=20)
@pytest.mark.parametrize("name", [name for name in BY_ID if "prv" in PEERS.get(name, {})])
def test_agrees_with_the_others_where_their_rounding_allows(name: str) -> None:
    """delta >= 1e-6: their brackets and ours overlap, unless theirs misses the truth."""
    says, truth = PEERS[name], float(_truth(name)[0])
    lower, upper = _bounds(name)
    if isinstance(says["google"], float) and says["google"] >= truth:
        assert lower <= says["google"]
    if isinstance(says["google_optimistic"], float) and says["google_optimistic"] <= truth:
        assert upper >= says["google_optimistic"]
    if isinstance(says["prv"], list) and says["prv"][0] <= truth <= says["prv"][1]:
        assert lower <= says["prv"][1]
        assert upper >= says["prv"][0]


@pytest.mark.thorough(cases=12)
@pytest.mark.untraced
@pytest.mark.parametrize("name", list(BY_ID)[::5])
def test_delta_at_the_true_epsilon(name: str) -> None:
    """The inverse question: at epsilon = truth, delta is the delta of the setting, rounded up."""
    delta = BY_ID[name]["delta"]
    bound = _curve(name).delta(float(_truth(name)[0]))
    slope = float(_truth(name)[1]) * 1e3 + 1e-9  # the error of the oracle, times d log delta / d epsilon
    assert delta * (1.0 - slope) <= bound <= delta * (1.0 + INVERSE)


def test_the_settings_are_many_and_far_apart() -> None:
    assert sum(name.startswith("random") for name in BY_ID) >= 200
    assert sum(not name.startswith("random") for name in BY_ID) >= 60
    parts = [tuple(part) for setting in DATA for part in setting["parts"]]
    deltas = [setting["delta"] for setting in DATA]
    assert min(q for q, *_ in parts) <= 1e-6 < 0.999 < max(q for q, *_ in parts if q < 1.0)
    assert min(sigma for _, sigma, _ in parts) <= 0.31 < 90 < max(sigma for _, sigma, _ in parts)
    assert min(count for *_, count in parts) == 1 < 900_000 < max(count for *_, count in parts)
    assert min(deltas) <= 1e-15 < 9e-3 < max(deltas)
    assert sum(len(setting["parts"]) > 1 for setting in DATA) >= 30
    assert sum(setting["adjacency"] == "replace-one" for setting in DATA) >= 15
    oracles = [setting["directions"][setting["way"]]["oracle"] for setting in DATA]
    assert sum("mpmath" in oracle for oracle in oracles) >= 60
    assert all(setting["directions"][setting["way"]]["spread"] <= 1e-9 for setting in DATA)


# --- a handful live: the file is not stale, and the oracles do not lean on one another ---------------------


needs_80_bits = pytest.mark.skipif(
    bool(np.finfo(np.longdouble).eps > 2e-19), reason="no 80-bit long double here"
)


@pytest.mark.thorough(cases=3)
@needs_80_bits
@pytest.mark.parametrize("name", ["hand-00", "mixed-01", "hand-10", "replaced-04"])
def test_inversion_live(name: str) -> None:
    setting = BY_ID[name]
    parts = [tuple(part) for part in setting["parts"]]
    first = oracles.Extended(parts, setting["way"]).solve(setting["delta"])
    second = oracles.Extended(parts, setting["way"]).solve(setting["delta"], 0.7)  # another line
    precise = oracles.multi_precision(parts, setting["way"], setting["delta"], first)
    with mp.workdps(30):
        for value in (mp.mpf(str(first.epsilon)), mp.mpf(str(second.epsilon)), precise):
            assert abs(value / mp.mpf(setting["epsilon"]) - 1) < 1e-17


@needs_80_bits
def test_two_oracles_without_a_common_formula() -> None:
    """Quadrature over the first of two steps against the inversion integral; neither may be off by 1e-17."""
    inverted = oracles.Extended([(0.5, 6.0, 2)], "remove").solve(1e-6).epsilon
    with mp.workdps(30):
        assert abs(mp.mpf(str(inverted)) / oracles.two_steps((0.5, 6.0, 2), "remove", 1e-6) - 1) < 1e-17


def test_closed_forms_to_1e_12() -> None:
    for part in [
        (1.0, 1.0, 1),
        (1.0, 30.0, 77),
        (1.0, 0.3, 1),
        (0.01, 1.0, 1),
        (1e-6, 0.5, 1),
        (0.7, 3.0, 1),
    ]:
        for delta in (1e-3, 1e-8, 1e-14):
            q, sigma, count = part
            truth = oracles.closed_form(part, 1, delta)
            event = Repeat(PoissonSampled(q, Gaussian(sigma)), count)
            upper = curve_of(event).epsilon(delta)
            with mp.workdps(30):
                assert truth * (1 - mp.mpf(10) ** -18) <= upper <= truth * (1 + mp.mpf(CLOSED))


def test_dp_accounting_live() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dp_accounting.pld import privacy_loss_distribution as pld

        for q, sigma, count, name in [(0.01, 4.0, 10_000, "hand-00"), (0.01, 1.0, 1000, "hand-36")]:
            assert BY_ID[name]["parts"] == [[q, sigma, count]]
            one = pld.from_gaussian_mechanism(sigma, sampling_prob=q, value_discretization_interval=1e-4)
            theirs = one.self_compose(count).get_epsilon_for_delta(1e-5)
            lower, upper = _bounds(name)
            assert lower <= theirs * (1 + 1e-12)
            assert upper <= theirs
            # It raises each coefficient of the transform to the power `count`: a unit in the last place of
            # one is `count` of them in the probabilities, and 1/δ times as much in δ. Processors with other
            # instructions round otherwise; two of them were seen to differ by 1e-9 here.
            rounding = count * sys.float_info.epsilon / 1e-5
            assert theirs == pytest.approx(PEERS[name]["google"], rel=rounding)


def test_laplace_single_closed_form() -> None:
    for scale in (0.2, 1.0, 7.0):
        for delta in (1e-2, 1e-6, 1e-12):
            with mp.workdps(40):
                exact = max(mp.mpf(0), 1 / mp.mpf(scale) + 2 * mp.log1p(-mp.mpf(delta)))
            upper = curve_of(Laplace(scale)).epsilon(delta)
            with mp.workdps(30):
                assert exact * (1 - mp.mpf(10) ** -18) <= upper <= exact * (1 + mp.mpf(CLOSED))


@pytest.mark.thorough(cases=40)
@EACH
def test_brackets_are_finite_and_ordered(name: str) -> None:
    lower, upper = _bounds(name)
    assert 0.0 <= lower <= upper
    assert math.isfinite(upper)
