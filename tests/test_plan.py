"""The plan derives its event, and refuses mechanisms that cannot be accounted for."""

import inspect
import math
import pickle
import re
from dataclasses import replace
from typing import Any

import pytest

from tacit.accounting import account
from tacit.clipping.rules import AdaptiveClipping, AutomaticClipping, FlatClipping, PerLayerClipping
from tacit.correlation import BLT, Banded, BandedInverse, Tree
from tacit.errors import BudgetExceeded, InvalidInput, PrivacyRefusal
from tacit.events import Adjacency, Compose, Gaussian, PoissonSampled, Repeat
from tacit.plan import GroupScoreReport, LossReport, Plan, PlanSettings, ScoreReport
from tacit.plan.plan import _FAMILIES
from tacit.rounding import round_up
from tacit.sampling import ByDate, CyclicPoissonSampling, FullBatch, PoissonSampling, ShuffledBatches

COMMON: dict[str, Any] = {
    "delta": 1e-5,
    "records": 1000,
    "batch_size": 100,
    "steps": 20,
    "clipping": 1.0,
    "adjacency": "add-remove",
    "unit": "row",
}


def make(**changes: Any) -> Plan:
    return Plan.with_noise(**{**COMMON, "noise_multiplier": 2.0, **changes})


def test_event_is_what_will_be_run() -> None:
    assert make().event == Repeat(PoissonSampled(0.1, Gaussian(2.0)), 20)
    assert make(batch_size=None).event == Repeat(Gaussian(2.0), 20)
    assert make(batch_size=1000).sampling == FullBatch()
    shuffled = make(sampling=ShuffledBatches(100, 1000), adjacency="replace-one")
    assert shuffled.event == Repeat(Gaussian(2.0), 2)


def test_preparation_is_part_of_the_event_and_of_the_price() -> None:
    plan = make(preparation=(Gaussian(4.0),))
    assert plan.event == Compose((Gaussian(4.0), Repeat(PoissonSampled(0.1, Gaussian(2.0)), 20)))
    assert plan.epsilon > make().epsilon
    assert plan.event_after(0) == Compose((Gaussian(4.0),))


def test_calibration_meets_the_budget_from_below() -> None:
    plan = Plan.calibrate(epsilon=1.5, **COMMON)
    assert 1.49 < plan.epsilon <= 1.5
    assert replace(plan, noise_multiplier=plan.noise_multiplier * 0.99, epsilon_budget=None).epsilon > 1.5


def test_calibration_takes_the_preparation_from_the_same_budget() -> None:
    plain = Plan.calibrate(epsilon=1.5, **COMMON)
    with_pca = Plan.calibrate(epsilon=1.5, preparation=[Gaussian(8.0)], **COMMON)
    assert with_pca.noise_multiplier > plain.noise_multiplier
    assert with_pca.epsilon <= 1.5


def test_budget_names_the_largest_number_of_steps_that_fits() -> None:
    with pytest.raises(BudgetExceeded, match=r"At most \d+ steps fit") as caught:
        make(steps=500, epsilon_budget=1.0)
    words = str(caught.value).split("At most ")[1]
    fits = int(words.split(" ")[0])
    assert make(steps=fits, epsilon_budget=1.0).epsilon <= 1.0
    with pytest.raises(BudgetExceeded):
        make(steps=fits + 1, epsilon_budget=1.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sampling": PoissonSampling(0.5)}, "Set batch_size to that mean"),
        ({"sampling": ShuffledBatches(100, 900), "adjacency": "replace-one"}, "900"),
        ({"sampling": FullBatch()}, "Set batch_size to that mean"),
    ],
)
def test_samplers_that_do_not_agree_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        make(**changes)


def test_large_delta_needs_an_explicit_yes() -> None:
    with pytest.raises(PrivacyRefusal, match="allow_large_delta"):
        make(delta=1e-3)
    assert make(delta=1e-3, allow_large_delta=True).delta == 1e-3


def test_unknown_samplers_and_rules_are_refused() -> None:
    class Mine(FullBatch):
        pass

    class MyClipping(FlatClipping):
        pass

    with pytest.raises(PrivacyRefusal, match="sampling must be one of"):
        replace(make(batch_size=None), sampling=Mine())
    with pytest.raises(PrivacyRefusal, match="clipping must be one of"):
        make(clipping=MyClipping(1.0))


def test_joint_releases_cost_what_the_stated_noise_costs() -> None:
    """The precisions of the parts add up to that of the stated noise: one joint Gaussian."""
    plan = make(clipping=AdaptiveClipping(1.0, count_noise=6.0), loss_report=LossReport(relative_noise=3.0))
    parts = plan.gradient_noise_multiplier**-2 + (2 * 6.0) ** -2 + (2 * 3.0 * 2.0) ** -2
    assert parts == pytest.approx(2.0**-2, rel=1e-12)
    assert plan.event == make().event
    joint = Compose((Gaussian(plan.gradient_noise_multiplier), Gaussian(12.0), Gaussian(12.0)))
    one = account(joint, adjacency="add-remove").epsilon(1e-5)
    assert one == pytest.approx(account(Gaussian(2.0), adjacency="add-remove").epsilon(1e-5), rel=1e-9)


def test_plain_plans_have_no_split() -> None:
    assert make().gradient_noise_multiplier == pytest.approx(2.0, rel=1e-12)
    assert make().count_noise is None
    assert make().loss_noise is None
    assert make(clipping=AdaptiveClipping(1.0)).count_noise == 5.0


def test_count_that_would_cost_more_than_the_step_is_refused() -> None:
    with pytest.raises(InvalidInput, match="count_noise"):
        make(clipping=AdaptiveClipping(1.0, count_noise=0.5))
    with pytest.raises(InvalidInput, match="relative_noise"):
        LossReport(relative_noise=0.5)


def test_calibration_with_adaptive_clipping() -> None:
    plan = Plan.calibrate(epsilon=3.0, **{**COMMON, "clipping": AdaptiveClipping(0.5)})
    assert isinstance(plan.clipping, AdaptiveClipping)
    assert plan.epsilon <= 3.0


def test_settings_are_listed_and_misspelt_ones_are_refused() -> None:
    for make_plan in (Plan.with_noise, Plan.calibrate):
        listed = inspect.signature(make_plan).parameters
        assert PlanSettings.__annotations__.keys() <= listed.keys()
        assert all(one.kind is one.KEYWORD_ONLY for one in listed.values())
        needed = {name for name, one in listed.items() if one.default is one.empty}
        assert needed - {"noise_multiplier"} == {"delta", "records", "clipping", "adjacency", "unit"}
        assert listed["views"].default == 1
    with pytest.raises(TypeError, match="unexpected keyword argument 'largest_batches'"):
        make(largest_batches=200)
    with pytest.raises(TypeError, match="unexpected keyword argument 'epsilon'"):
        make(epsilon=3.0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'adjacancy'"):
        Plan.with_noise(noise_multiplier=1.0, adjacancy="add-remove")  # type: ignore[call-arg]
    for name in ("delta", "records", "clipping", "adjacency", "unit"):
        with pytest.raises(InvalidInput, match=rf"^{name} is missing\. Give "):
            Plan.with_noise(noise_multiplier=1.0, **{k: v for k, v in COMMON.items() if k != name})


def test_help_describes_each_setting() -> None:
    for make_plan in (Plan.with_noise, Plan.calibrate):
        told = inspect.getdoc(make_plan) or ""
        assert all(re.search(rf"^    {name}: ", told, re.MULTILINE) for name in PlanSettings.__annotations__)


def test_a_printed_plan_has_its_epsilon() -> None:
    plan = make()
    assert f"epsilon = {round_up(plan.epsilon)} at delta = 1e-05 for one row (add-remove)" in str(plan)


@pytest.mark.parametrize("name", ["expected_batch_size", "noise_multiplier", "epsilon_budget"])
def test_what_follows_from_settings_is_no_setting(name: str) -> None:
    """Such a setting would be overwritten without a message."""
    with pytest.raises(TypeError, match=rf"^Plan\.calibrate\(\) got an unexpected keyword argument '{name}'"):
        Plan.calibrate(epsilon=3.0, **{**COMMON, name: 50.0})
    if name == "expected_batch_size":
        with pytest.raises(TypeError, match=r"^Plan\.with_noise"):
            make(expected_batch_size=50.0)


# --- JSON ------------------------------------------------------------------------------------------------

PLANS: dict[str, Plan] = {
    "poisson": make(),
    "full": make(batch_size=None, preparation=(Gaussian(8.0), Gaussian(4.0)), views=3),
    "shuffled": make(sampling=ShuffledBatches(100, 1000), adjacency="replace-one"),
    "truncated": make(largest_batch=150, epsilon_budget=9.0),
    "epochs": make(sampling="epochs"),
    "cyclic": make(sampling=CyclicPoissonSampling(0.2, 2), correlation=Banded((1.0, 0.5))),
    "dates": make(sampling=ByDate(2, 5), correlation=BLT((0.9, 0.2), (0.1, 0.3))),
    "tree": make(batch_size=None, correlation=Tree(5)),
    "inverse": make(batch_size=None, correlation=BandedInverse((1.0, -0.5))),
    "reports": make(
        clipping=AdaptiveClipping(1.0, count_noise=6.0), loss_report=LossReport(4.0),
        score_report=ScoreReport(9.0),
    ),
    "groups": make(score_report=GroupScoreReport(9.0, ("sex", "age"))),
    "rows": make(clipping=PerLayerClipping(5.0, (("a", 3.0), ("b", 4.0))), rows_per_user=3),
    "automatic": make(clipping=AutomaticClipping(0.3), delta=0.01, allow_large_delta=True),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_is_read_back_from_json_exactly(name: str) -> None:
    plan = PLANS[name]
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert repr(again) == repr(plan)
    assert again.event == plan.event


def test_all_kinds_of_parts_are_read_back_above() -> None:
    (family, _) = _FAMILIES
    written = {kind for plan in PLANS.values() for kind in re.findall(r'"kind": "(\w+)"', plan.to_json())}
    assert written == {kind.__name__ for kind in family.kinds}


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ('"Plan"', '"Plans"', "unknown kind 'Plans'"),
        ('"PoissonSampling"', '"LotSampling"', "unknown kind 'LotSampling'"),
        (
            '"PoissonSampling"',
            '"FlatClipping"',
            "FlatClipping takes exactly the fields norm",
        ),
        ('"views"', '"lots"', "Plan takes exactly the fields"),
        ('"sampling_rate": 0.1', '"sampling_rate": 0.2', "sampling draws 200"),
        ('"norm": 1.0', '"norm": [1.0]', "norm must be a real number"),
        ('"preparation": []', '"preparation": 5', "Plan cannot be made from these values"),
        ('"kind": "Plan"', '"event": "Gaussian"', "a kind must be an object with the key 'kind'"),
        ("}", "", "not a kind in JSON"),
    ],
)
def test_json_that_is_no_plan_is_refused_by_name(before: str, after: str, words: str) -> None:
    text = make().to_json()
    assert before in text
    with pytest.raises(InvalidInput, match=words):
        Plan.from_json(text.replace(before, after))


def test_what_json_names_must_be_what_the_plan_takes() -> None:
    text = make().to_json()
    for part in ('{"kind": "FlatClipping", "norm": 1.0}', "null", "5"):
        changed = re.sub(r'"sampling": {[^}]*}', f'"sampling": {part}', text)
        with pytest.raises(PrivacyRefusal, match="sampling must be one of"):
            Plan.from_json(changed)
    with pytest.raises(InvalidInput, match="describes a FlatClipping, not a plan"):
        Plan.from_json('{"kind": "FlatClipping", "norm": 1.0}')


def test_shape_of_the_run() -> None:
    plan = Plan.with_noise(**{**COMMON, "steps": None, "epochs": 2.5}, noise_multiplier=2.0)
    assert (plan.steps, plan.steps_per_epoch, plan.expected_batch_size) == (25, 10, 100.0)
    assert plan.sampling_rate == pytest.approx(0.1)
    assert plan.epochs == pytest.approx(2.5)


def test_epsilon_after_is_monotone_and_ends_at_epsilon() -> None:
    plan = make()
    spent = plan.epsilon_after([0, 1, 10, 20])
    assert spent[0] == 0.0
    assert spent == sorted(spent)
    assert spent[-1] == pytest.approx(plan.epsilon, rel=1e-6)
    assert math.isfinite(plan.curve.delta(1.0))


def test_replace_one_costs_more() -> None:
    assert make(batch_size=None, adjacency=Adjacency.REPLACE_ONE).epsilon > make(batch_size=None).epsilon
    assert make(clipping=PerLayerClipping(1.0)).event == make().event


def test_a_plan_that_was_priced_is_pickled_without_its_prices() -> None:
    for steps, batch in ((1, None), (5, 100)):
        plan = Plan.calibrate(
            epsilon=3.0, delta=1e-5, records=1000, batch_size=batch, steps=steps, clipping=1.0,
            adjacency="add-remove", unit="row",
        )  # fmt: skip
        price = plan.epsilon
        again = pickle.loads(pickle.dumps(plan))
        assert again == plan
        assert again.epsilon == price
