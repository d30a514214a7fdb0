"""Noise that is correlated in time: it agrees with its matrix to the last digits, and has its price."""

from __future__ import annotations

import itertools
import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made import a_ledger, a_plan, a_session, recorded
from priced import Matrix, toeplitz, tree, worst_pattern
from ran import make_statement
from regression import Recorder
from torch import Tensor, nn

from tacit.accounting.flatten import matrix_sensitivity, tree_sensitivity
from tacit.clipping import AdaptiveClipping, PerLayerClipping
from tacit.correlation import BLT, Banded, BandedInverse, Correlation, Tree, prefix_error
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.events import CyclicPoissonSampled, MatrixFactorization, TreeAggregation
from tacit.noise.gaussian import gaussian
from tacit.plan import LossReport, Plan
from tacit.report.verification import verify_statement
from tacit.sampling import CyclicPoissonSampling, PoissonSampling
from tacit.testing import seeded_generator
from tacit.training import AuditSlots, FlipAndCrop, PrivateSession, StepCharges, UserRecords
from tacit.training import correlated as correlated_module
from tacit.training.correlated import combine

N, D, C = 24, 4, 0.5
FORMS: dict[str, Correlation] = {
    "banded": Banded.square_root(4),
    "banded, not normalised": Banded((2.0, -0.5, 0.25)),
    "many bands": Banded.square_root(20),
    "inverse": BandedInverse.square_root(3),
    "inverse, any numbers": BandedInverse((0.5, -0.2, 0.1, 0.3)),
    "blt": BLT((0.9, 0.3), (0.2, 0.4)),
    "blt, any numbers": BLT((0.9, -0.4, 1.0), (-0.3, 0.2, 0.1)),
    "tree": Tree(),
    "independent": Banded((1.0,)),
}


plan = partial(a_plan, records=N, sampling=CyclicPoissonSampling(1.0, 4), batch_size=6)


def losses(model: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = model(x)
    return out.square().sum(1)


def nothing(model: nn.Module, x: Tensor) -> Tensor:
    return 0.0 * losses(model, x)


def session(
    the_plan: Plan, *, loss: Any = losses, data: Any = None, width: int = 3, **more: Any
) -> PrivateSession:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(D, width), nn.Tanh(), nn.Linear(width, 2)).double()
    x = torch.randn(N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    more = {
        "optimizer": Recorder(model.parameters()),
        "generator": seeded_generator(more.pop("key", 5)),
        **more,
    }
    return a_session(model, x if data is None else data, the_plan, loss=loss, **more)


def released(made: PrivateSession, steps: int | None = None) -> Matrix:
    """Return the releases of the steps, times the divisor, (T, P)."""
    for ticket in itertools.islice(made.batches(), steps):
        made.step(ticket)
    return torch.stack(recorded(made)).numpy()


def dense(form: Correlation | None, steps: int) -> Matrix:
    """Return C by its definition."""
    if isinstance(form, BLT):
        c = [sum(w * p**i for p, w in zip(form.decays, form.scales, strict=True)) for i in range(steps - 1)]
        return toeplitz((1.0, *c), steps)
    assert isinstance(form, Banded | BandedInverse)
    matrix = toeplitz(form.coefficients, steps)
    return matrix if isinstance(form, Banded) else np.asarray(np.linalg.inv(matrix))


def draws(made: PrivateSession, address: int) -> Matrix:
    """Return the independent draws of an address, for all parameters in order."""
    parts = [
        gaussian(seeded_generator(5), tuple(p.shape), std=C, step=address, index=index, dtype=torch.float64)
        for index, p in enumerate(made.model.parameters())
    ]
    return torch.cat([part.flatten() for part in parts]).numpy()


def expected_noise(made: PrivateSession, steps: int) -> Matrix:
    """Compute the noise by dense matrices; that of a tree by the definition of its nodes."""
    form = made.plan.correlation
    if isinstance(form, Tree):
        prefixes = [np.zeros_like(draws(made, 0))]
        for count in range(1, steps + 1):
            total, start = np.zeros_like(prefixes[0]), 0
            while start < count:
                size = 1
                while start % (2 * size) == 0 and start + 2 * size <= count:
                    size *= 2
                total = total + draws(made, (int(math.log2(size)) << 33) | (start // size))
                start += size
            prefixes.append(total)
        return np.diff(np.stack(prefixes), axis=0)
    Z = np.stack([draws(made, step) for step in range(steps)])
    return np.asarray(np.linalg.solve(dense(form, steps), Z), dtype=np.float64)


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("steps", [1, 13, 64])
@pytest.mark.parametrize("form", FORMS)
def test_the_noise_of_the_steps_is_that_of_the_matrix(form: str, steps: int) -> None:
    made = session(plan(correlation=FORMS[form], steps=steps), loss=nothing)
    found, expected = released(made), expected_noise(made, steps)
    assert np.abs(found - expected).max() <= 1e-12 * np.abs(expected).max()


def test_one_coefficient_is_independent_noise_bit_for_bit() -> None:
    found, before = released(session(plan(correlation=Banded((1.0,))))), released(session(plan()))
    assert np.array_equal(found, before)


# --- the price -------------------------------------------------------------------------------------------


def column_of(form: Correlation, steps: int) -> tuple[float, ...]:
    event = form.event(1.0, steps, participations=1, separation=1)
    assert isinstance(event, MatrixFactorization)
    return event.coefficients


@pytest.mark.parametrize("form", [form for form in FORMS if form not in ("tree", "independent")])
@pytest.mark.parametrize(("participations", "separation"), [(1, 1), (2, 3), (3, 2), (7, 1)])
def test_no_pattern_of_participation_moves_more_than_the_price_says(
    form: str, participations: int, separation: int
) -> None:
    steps = 7
    event = FORMS[form].event(1.0, steps, participations=participations, separation=separation)
    assert isinstance(event, MatrixFactorization)
    bound, matrix = matrix_sensitivity(event), dense(FORMS[form], steps)
    assert np.allclose(matrix, toeplitz(event.coefficients, steps), rtol=0, atol=1e-12)
    largest = worst_pattern(matrix, participations, separation)
    assert largest <= bound
    if form in ("banded", "many bands", "inverse", "blt"):  # positive and falling: the bound is met
        assert largest == pytest.approx(bound, rel=1e-9)


def moved(the_plan: Plan, **more: Any) -> float:
    """Return the largest change of C g by one record more, in clipping norms."""
    form, steps = the_plan.correlation, the_plan.steps
    matrix = tree(steps) if isinstance(form, Tree) else dense(form, steps)
    x = torch.randn(N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    largest = 0.0
    for key in (1, 2, 3):
        without = released(session(the_plan, data=x, key=key, **more))
        for scale in (0.1, 100.0):
            both = torch.cat([x, scale * torch.ones(1, D, dtype=torch.float64)])
            change = released(session(the_plan, data=both, key=key, **more)) - without
            largest = max(largest, float(np.linalg.norm(matrix @ change)) / C)
    return largest


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("physical", [512, 2])
def test_one_record_moves_a_run_by_no_more_than_the_price_says(form: str, physical: int) -> None:
    the_plan = plan(correlation=FORMS[form])
    event = the_plan.event
    bound = tree_sensitivity(event) if isinstance(event, TreeAggregation) else matrix_sensitivity(event)  # type: ignore[arg-type]
    found = moved(the_plan, physical_batch_size=physical)
    assert 0.3 * bound < found <= bound * (1 + 1e-4)


@pytest.mark.parametrize("form", ["banded", "blt"])
def test_planted_bug_the_noise_of_a_step_is_forgotten(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (correlated_module._Steps, correlated_module._Buffers):
        real = kind.less

        def less(self: Any, step: int, parts: Any, real: Any = real) -> Any:
            if step == 3:
                [row.zero_() for row in self._rows]
            return real(self, step, parts)

        monkeypatch.setattr(kind, "less", less)
    made = session(plan(correlation=FORMS[form], steps=5), loss=nothing)
    assert np.abs(released(made) - expected_noise(made, 5)).max() > 0.01


def test_planted_bug_a_block_takes_back_what_the_first_block_did(monkeypatch: pytest.MonkeyPatch) -> None:
    real = correlated_module._Steps._begin_block

    def once(self: Any, begun: int) -> None:
        if begun < 16:
            real(self, begun)

    monkeypatch.setattr(correlated_module._Steps, "_begin_block", once)
    made = session(plan(correlation=FORMS["many bands"], steps=20), loss=nothing)
    assert np.abs(released(made) - expected_noise(made, 20)).max() > 0.01


def test_planted_bug_a_step_that_is_begun_again_comes_to_the_buffers_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = correlated_module._Buffers.less

    def again(self: Any, step: int, parts: Any) -> Any:
        self._step = -2
        return real(self, step, parts)

    monkeypatch.setattr(correlated_module._Buffers, "less", again)
    with pytest.raises(AssertionError):
        test_a_step_that_failed_is_begun_again_with_the_same_noise("blt")


def test_planted_bug_a_record_takes_part_in_each_cycle_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    real = CyclicPoissonSampling.indices

    def anew(self: Any, generator: Any, step: int, records: int) -> Any:
        return real(self, seeded_generator(step // self.cycle), step, records)

    monkeypatch.setattr(CyclicPoissonSampling, "indices", anew)
    the_plan = plan(correlation=Banded.square_root(4), steps=16, noise_multiplier=3.0)
    event = the_plan.event
    assert isinstance(event, MatrixFactorization)
    assert moved(the_plan) > matrix_sensitivity(event)


def test_events_are_those_of_the_sampling() -> None:
    banded = Banded.square_root(3)
    assert plan(correlation=banded).event == MatrixFactorization(1.0, banded.coefficients, 12, 3, 4)
    assert plan(correlation=banded).event_after(6) == MatrixFactorization(1.0, banded.coefficients, 6, 2, 4)
    full = plan(correlation=banded, sampling=None, batch_size=None)
    assert full.event == MatrixFactorization(1.0, banded.coefficients, 12, 12, 1)
    sampled = plan(correlation=banded, sampling=CyclicPoissonSampling(0.5, 4), batch_size=3)
    assert sampled.event == CyclicPoissonSampled(0.5, 4, MatrixFactorization(1.0, banded.coefficients, 12))
    assert plan(correlation=Tree()).event == TreeAggregation(1.0, 12, 3, 4)
    assert plan(correlation=banded).charging_unit == 12


def rms_of_prefix_sums(column: tuple[float, ...], steps: int) -> float:
    """Return the root mean square of the noise of prefix sums, by dense matrices."""
    sums = np.tril(np.ones((steps, steps))) @ np.linalg.inv(toeplitz(column, steps))
    return float(np.sqrt((sums**2).sum(1).mean()))


def error(the_plan: Plan) -> float:
    """Return the root mean square noise of prefix sums of the steps, in clipping norms over the batch."""
    form, steps = the_plan.correlation, the_plan.steps
    column = (1.0,) if form is None else column_of(form, steps)
    return the_plan.noise_multiplier * rms_of_prefix_sums(column, steps) / the_plan.expected_batch_size


def test_banded_noise_on_cyclic_samples_beats_independent_noise_as_accounted() -> None:
    common: dict[str, Any] = {
        "epsilon": 3.0, "delta": 1e-5, "records": 60_000, "batch_size": 600, "steps": 1000, "clipping": 1.0,
        "adjacency": "add-remove", "unit": "row",
    }  # fmt: skip
    independent = Plan.calibrate(**common)
    banded = Plan.calibrate(
        **common, correlation=Banded.optimised(8, 1000), sampling=CyclicPoissonSampling(0.08, 8)
    )
    assert banded.epsilon <= 3.0
    assert error(banded) <= 0.72 * error(independent)


@pytest.mark.parametrize(
    ("kind", "bands", "steps", "times", "apart"),
    [
        (Banded, 4, 60, 1, 1), (Banded, 8, 60, 3, 20), (Banded, 5, 12, 12, 1), (Banded, 1, 9, 1, 1),
        (BandedInverse, 2, 60, 1, 1), (BandedInverse, 4, 60, 3, 20), (BandedInverse, 3, 12, 12, 1),
    ],
)  # fmt: skip
def test_optimised_coefficients_have_less_noise_than_square_roots_and_their_neighbours(
    kind: Any, bands: int, steps: int, times: int, apart: int
) -> None:
    """All have one price; the prefix errors are from dense matrices."""

    def cost(form: Any) -> float:
        event = form.event(1.0, steps, participations=times, separation=apart)
        found = rms_of_prefix_sums(event.coefficients, steps)
        assert prefix_error(form, steps) == pytest.approx(found, rel=1e-9)
        return found * matrix_sensitivity(event)

    best = kind.optimised(bands, steps, participations=times, separation=apart)
    least = cost(best)
    assert least <= cost(kind.square_root(bands)) * (1 + 1e-12)
    for j in range(1, bands):
        for by in (-0.03, 0.03):
            coefficients = [*best.coefficients]
            coefficients[j] += by
            assert cost(kind(tuple(coefficients))) > least * (1 - 1e-6)


def test_four_draws_a_step_do_what_64_bands_of_the_square_root_do() -> None:
    few, many = BandedInverse.optimised(4, 500), Banded.square_root(64)
    columns = [matrix_sensitivity(f.event(1.0, 500, participations=1, separation=1)) for f in (few, many)]  # type: ignore[arg-type]
    assert prefix_error(few, 500) * columns[0] < 1.01 * prefix_error(many, 500) * columns[1]


# --- runs ------------------------------------------------------------------------------------------------


def saved(form: str, steps: int, path: Path) -> Path:
    """Save a run after some steps."""
    begun = session(plan(correlation=FORMS[form]))
    released(begun, steps)
    begun.save(path)
    return path


@pytest.mark.parametrize("form", FORMS)
def test_a_resumed_run_goes_on_bit_for_bit(form: str, tmp_path: Path) -> None:
    whole = released(session(plan(correlation=FORMS[form])))
    for stop in (1, 7):
        resumed = session(plan(correlation=FORMS[form]))
        resumed.load(saved(form, stop, tmp_path / "state"))
        assert np.array_equal(released(resumed), whole[stop:])


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize(("key", "done"), [(5, 7), (6, 5)], ids=["its own", "of another key"])
@pytest.mark.parametrize("form", FORMS)
def test_a_session_may_go_back_to_a_run(form: str, key: int, done: int, tmp_path: Path) -> None:
    whole = released(session(plan(correlation=FORMS[form])))
    made = session(plan(correlation=FORMS[form]), key=key)
    released(made, done)
    made.load(saved(form, 5, tmp_path / "state"))
    assert np.array_equal(released(made)[done:], whole[5:])


@pytest.mark.parametrize("form", ["banded", "blt", "inverse"])
def test_a_step_that_failed_is_begun_again_with_the_same_noise(form: str) -> None:
    whole = released(session(plan(correlation=FORMS[form])))
    failing = [False]

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        if failing[0]:
            raise OSError("planted")
        return losses(model, x)

    made = session(plan(correlation=FORMS[form]), loss=loss)
    released(made, 5)
    failing[0] = True
    with pytest.raises(InvalidInput, match="OSError"):
        released(made, 1)
    failing[0] = False
    assert np.array_equal(released(made), whole)


def test_the_state_of_another_correlation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PrivacyRefusal, match="plan"):
        session(plan(correlation=Tree())).load(saved("banded", 2, tmp_path / "state"))


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("form", FORMS)
def test_a_statement_can_be_checked(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.report.statement._GROUPS", ())  # whose epsilons take longer than all the rest
    for sampling, batch in (
        (CyclicPoissonSampling(1.0, 4), 6),
        (None, None),
        (CyclicPoissonSampling(0.5, 6), 2),
    ):
        sampled = sampling is not None and sampling.sampling_rate < 1.0
        if sampled and (not isinstance(FORMS[form], Banded) or form == "many bands"):
            continue
        the_plan = plan(correlation=FORMS[form], sampling=sampling, batch_size=batch)
        statement = make_statement(the_plan, steps_done=12)
        assert verify_statement(statement.data).verdict == "agrees"
        data = json.loads(statement.to_json())
        del data["mechanism"]["noise_in_time"]
        if form != "independent":
            assert verify_statement(data).verdict != "agrees"


def test_a_run_is_charged_as_a_whole() -> None:
    ledger, the_plan = a_ledger(), plan(correlation=FORMS["banded"])
    charges = StepCharges(ledger, "rows", the_plan, chunk=3, generator=seeded_generator(5))
    assert charges.chunk == 12
    released(session(the_plan, charges=charges))
    assert ledger.status("rows").charges["SETTLED"] == 1


def test_people_may_take_part_in_cycles() -> None:
    x = torch.randn(3 * N, D, dtype=torch.float64)
    data = UserRecords(x, np.arange(3 * N) % N, rows_per_user=2)
    made = session(plan(correlation=FORMS["banded"], unit="user"), data=data)
    assert released(made).shape[0] == 12


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "Poisson samples": ({"sampling": PoissonSampling(0.25)}, "in which steps a record may participate"),
    "a tree on samples": (
        {"correlation": Tree(), "sampling": CyclicPoissonSampling(0.5, 2)}, "only with banded noise",
    ),
    "adaptive clipping": (
        {"clipping": AdaptiveClipping(C, count_noise=5.0)}, "adaptive clipping has no proven bound",
    ),
    "a loss report": ({"loss_report": LossReport()}, "a loss report has no proven bound"),
    "rows of people": ({"rows_per_user": 2}, "rows_per_user in the plan has no proven bound"),
    "another kind": ({"correlation": object()}, "must be one of Banded"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_proof_is_refused(case: str) -> None:
    changes, words = REFUSED[case]
    with pytest.raises(PrivacyRefusal, match=words):
        plan(**{"correlation": Banded.square_root(3), **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"correlation": FORMS["banded"], "sampling": None, "batch_size": None},
            "do not support noise correlated over steps",
        ),
        ({}, "batches in a cycle"),
    ],
)
def test_slots_test_independent_noise_and_no_cycles(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PrivacyRefusal, match=words):
        session(plan(**changes), audit=AuditSlots(2))


def test_longer_bands_than_the_cycle_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"one entry per step of the cycle \(2\); got 5"):
        plan(correlation=Banded.square_root(5), sampling=CyclicPoissonSampling(0.5, 2))


@pytest.mark.parametrize(
    ("decays", "scales", "words"),
    [
        ((), (), r"decays must be a list"),
        ((0.5,), "0.5", r"scales must be a list"),
        ((0.5, 0.2), (0.1,), r"the same length; got 2 and 1"),
        ((1.01,), (0.1,), r"decays\[0\]"),
        ((0.5,), (math.inf,), r"scales\[0\]"),
    ],
)
def test_wrong_buffers_are_refused(decays: Any, scales: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        BLT(decays, scales)


@pytest.mark.parametrize("given", [(), "1.0", (0.0, 1.0), (-1.0,), (math.nan,), 3.0])
@pytest.mark.parametrize("kind", [Banded, BandedInverse])
def test_wrong_coefficients_are_refused(kind: Any, given: Any) -> None:
    with pytest.raises(InvalidInput, match="coefficients"):
        kind(given)


def test_per_layer_clipping_and_views_go_with_it() -> None:
    pictures = torch.randn(N, 1, 2, 2, dtype=torch.float64)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).double()
    the_plan = plan(correlation=FORMS["inverse"], clipping=PerLayerClipping(C), views=2)
    settings: dict[str, Any] = {"optimizer": Recorder(model.parameters()), "augmentation": FlipAndCrop(1)}
    made = a_session(model, pictures, the_plan, loss=losses, **settings)
    assert released(made).shape[0] == 12


# --- cycles ----------------------------------------------------------------------------------------------


def test_each_record_has_one_part_and_parts_are_alike() -> None:
    sampling, generator = CyclicPoissonSampling(1.0, 5), seeded_generator(3)
    seen = [sampling.indices(generator, step, 5000) for step in range(10)]
    assert sorted(np.concatenate(seen[:5]).tolist()) == list(range(5000))
    for step in range(5):
        assert np.array_equal(seen[step], seen[step + 5])
        assert abs(len(seen[step]) - 1000) < 5 * math.sqrt(800)


def test_samples_of_a_part_are_drawn_anew_in_each_cycle() -> None:
    whole, sampled = CyclicPoissonSampling(1.0, 3), CyclicPoissonSampling(0.3, 3)
    generator = seeded_generator(3)
    for step in range(6):
        part, drawn = (s.indices(generator, step, 6000) for s in (whole, sampled))
        assert set(drawn) <= set(part)
        assert abs(len(drawn) - 600) < 5 * math.sqrt(600)
    first, again = (sampled.indices(generator, step, 6000) for step in (0, 3))
    assert abs(len(set(first) & set(again)) - 180) < 5 * math.sqrt(180)


@pytest.mark.parametrize("form", ["banded", "blt"])
@pytest.mark.parametrize("calls", [1, 2, 3])
def test_an_interrupt_anywhere_leaves_the_noise_of_the_step(
    form: str, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Press Ctrl-C after each change of the stored noise; the step is then taken again."""
    whole = released(session(plan(correlation=FORMS[form])))
    run = session(plan(correlation=FORMS[form]))
    first = released(run, 5)
    real, left = combine, [calls]

    def interrupted(*given: Any) -> None:
        real(*given)
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(correlated_module, "combine", interrupted)
    with pytest.raises(KeyboardInterrupt):
        released(run)
    done = run.steps_done
    assert np.array_equal(released(run), whole)
    assert 5 <= done < 12
    assert len(first) == 5
