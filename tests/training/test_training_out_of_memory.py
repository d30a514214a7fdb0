"""A step that ran out of memory is repeated as if for the first time; zeros show the largest batch."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from made import a_plan, a_session, finish, losses, network, one_step, table, weights
from torch import Tensor, nn

from tacit.clipping.engine import GradientEngine
from tacit.clipping.fast import FastEngine
from tacit.clipping.reference import ReferenceEngine
from tacit.clipping.rules import AdaptiveClipping, FlatClipping
from tacit.correlation import BLT, Banded
from tacit.errors import DeviceLost, InvalidInput, PrivacyRefusal, UnsupportedModel
from tacit.plan import LossReport
from tacit.sampling import CyclicPoissonSampling
from tacit.testing import seeded_generator
from tacit.training import AuditSlots, FlipAndCrop, PrivateSession, step
from tacit.training.ranks import Layout

D, CLASSES = 6, 3
OUT = "CUDA out of memory. Tried to allocate 2.00 GiB."


def net(*, dropout: bool = False) -> nn.Module:
    layers = [nn.Dropout(0.5)] if dropout else []
    return nn.Sequential(*layers, network(D, 4, CLASSES)).double()


class Short:
    """The engine of a session whose device takes ``most`` records at once, from the call ``begins`` on.

    What counts is the physical batch size, and in a search the records themselves: the participants are
    divided evenly, so a physical batch may have a few more or fewer than its size. The engine fails ``at`` a
    place of the pass: before it, in the middle of the sum, or after all is added.
    """

    def __init__(
        self,
        run: PrivateSession,
        most: int,
        *,
        at: str = "in the sum",
        begins: int = 0,
        error: Callable[[], RuntimeError] = lambda: torch.OutOfMemoryError(OUT),
    ) -> None:
        engine: Any = run._run.engine
        self._run = run._run
        self._engine, self._most, self._at, self._begins, self._error = engine, most, at, begins, error
        self._add: Any = engine._add
        engine._add = self
        self.calls: list[int] = []
        self.failed = 0
        self.batches: list[weakref.ref[Tensor]] = []
        self.sums: list[weakref.ref[Tensor]] = []

    def __call__(self, sums: Mapping[str, Tensor], batch: Any, thresholds: Tensor, scale: float) -> Any:
        n = len(batch[0]) // self._engine.views
        self.calls.append(n)
        physical = self._run.physical
        size = physical.at(self._run.done) if physical._sizes else n
        if size <= self._most or len(self.calls) <= self._begins:
            return self._add(sums, batch, thresholds, scale)
        self.failed += 1
        if self._at != "before":
            self.batches.append(weakref.ref(batch[0]))
            self.sums += [weakref.ref(tensor) for tensor in sums.values()]
            self._add(
                _Stops(sums, self._error) if self._at == "in the sum" else sums, batch, thresholds, scale
            )
        raise self._error()


class _Stops(dict[str, Tensor]):
    """Sums whose second buffer cannot be allocated."""

    def __init__(self, sums: Mapping[str, Tensor], error: Callable[[], RuntimeError]) -> None:
        super().__init__(sums)
        self._error, self._asked = error, set[str]()

    def __getitem__(self, name: str) -> Tensor:
        self._asked.add(name)
        if len(self._asked) > 1:
            raise self._error()
        return super().__getitem__(name)


@pytest.fixture(scope="module", autouse=True)
def little_to_collect() -> None:
    """Let the garbage collector, which runs each time that memory is short, pass over what modules made."""
    finish(session())  # a first step imports more of torch
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "CUDA ran out of memory")
        yield


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "reference": {"engine": "reference"},
    "adaptive": {"plan": {"clipping": AdaptiveClipping(0.5), "loss_report": LossReport(bound=3.0)}},
    "banded": {"plan": {"correlation": Banded.square_root(3), "sampling": CyclicPoissonSampling(1.0, 3)}},
    "buffers": {"plan": {"correlation": BLT((0.9,), (0.3,)), "sampling": CyclicPoissonSampling(1.0, 3)}},
    "audited": {"audit": AuditSlots(8)},
    "averaged": {"ema_decay": 0.9},
    "workers": {"workers": 1},
    "views": {"plan": {"views": 2}, "augmentation": FlipAndCrop(1), "shape": (1, 2, 3)},
    "dropout": {"model": lambda: net(dropout=True)},
}


def session(kind: str = "plain", *, physical: Any = 8, data_seed: int = 0, **changes: Any) -> PrivateSession:
    settings = {**KINDS[kind], **changes}
    x, y = table(60, D, CLASSES, seed=data_seed, dtype=torch.float64)
    model = settings.pop("model", net)()
    if "shape" in settings:
        x, model = x.reshape(60, *settings.pop("shape")), nn.Sequential(nn.Flatten(), model)
    plan = a_plan(steps=6, **settings.pop("plan", {}))
    return a_session(model, (x, y), plan, momentum=0.9, physical_batch_size=physical, **settings)


def noted(run: PrivateSession, steps: int | None = None) -> dict[str, Any]:
    """Take the steps that are left; return everything that a step may leave, to be compared exactly."""
    gradients: list[Tensor] = []
    optimizer: Any = run._run.optimizer
    moves = optimizer.step

    def keep(released: Any) -> None:
        gradients.append(torch.cat([g.flatten() for g in released.values()]).clone())
        moves(released)

    reports, begun = [], torch.get_rng_state()
    optimizer.step = keep
    for ticket in run.batches():
        reports.append(run.step(ticket))
        if run.steps_done == steps:
            break
    assert torch.equal(torch.get_rng_state(), begun)
    assert all(p.grad is None for p in run.model.parameters())
    return {
        "released": torch.stack(gradients),
        "weights": weights(run.current_model),
        "momentum": [s["momentum_buffer"] for s in run.optimizer.state.values()],
        "losses": [report.loss for report in reports],
        "steps": [report.step for report in reports],
        "thresholds": run.thresholds,
        "slots": None if run._run.slots is None else torch.from_numpy(run._run.slots._stacked()),
        "buffers": [buffer.clone() for buffer in run.model.buffers()],
        "shown": run._run.progress.loss,
    }


def check_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0, msg=name)


def check_done_again(kind: str = "plain", at: str = "in the sum", **changes: Any) -> None:
    """Check that the repeat, from the first step on, equals a session with the smaller batch."""
    run = session(kind, **changes)
    short = Short(run, 4, at=at, begins=1)  # the first batch of the first step passes
    found = noted(run)
    assert short.failed == 1
    check_same(found, noted(session(kind, physical=4, **changes)))


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("at", ["before", "in the sum", "after"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_done_again_releases_the_bits_of_a_smaller_batch(kind: str, at: str) -> None:
    check_done_again(kind, at)


@pytest.mark.parametrize("kind", ["plain", "adaptive", "banded", "buffers", "dropout", "audited", "workers"])
def test_a_later_step_is_done_again(kind: str) -> None:
    """The steps before it keep their size; the state of correlated noise moves once."""
    run = session(kind)
    Short(run, 4, begins=3 * 2 + 4)
    found = noted(run)
    sizes = run._run.physical._sizes
    ((_, first), (at, then)) = sizes.items()
    assert (first, then) == (8, 4)
    assert 0 < at < 6
    other = session(kind)
    other._run.physical._sizes = dict(sizes)
    check_same(found, noted(other))


def test_halved_as_often_as_it_takes_and_said_once() -> None:
    run = session(physical=16)
    Short(run, 3)
    with pytest.warns(UserWarning, match="CUDA ran out of memory with 16 records at once") as said:
        found = noted(run, 3)
    assert [str(one.message).count("2 at once") for one in said] == [1]
    check_same(found, noted(session(physical=2), 3))


def test_with_one_record_at_once_the_error_says_what_helps() -> None:
    run = session()
    short = Short(run, 0, at="after")
    before = weights(run)
    for _ in range(2):  # nor does it help to ask again
        with pytest.raises(InvalidInput, match=r"one record at a time.*LEAN"):
            one_step(run)
    assert (run.steps_done, run.epsilon) == (0, 0.0)
    assert torch.equal(weights(run), before)
    short._most = 60
    check_same(noted(run, 2), noted(session(physical=1), 2))  # what was tried in vain left nothing


def test_what_the_first_try_kept_is_let_go_before_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass frees its tensors before it empties the cache, and the sums before the second try."""
    run = session()
    short = Short(run, 4)
    physical: Any = run._run.physical
    halve, alive = physical.halve, list[tuple[str, int]]()

    def look(what: str, kept: list[weakref.ref[Tensor]]) -> None:
        alive.append((what, sum(tensor() is not None for tensor in kept)))

    def halved(number: int) -> None:
        look("sums", short.sums)
        halve(number)

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: look("batch", short.batches))
    monkeypatch.setattr(physical, "halve", halved)
    one_step(run)
    assert (len(short.batches), len(short.sums)) == (1, 4)
    assert alive == [("batch", 0), ("sums", 0)]


# --- planted bugs ------------------------------------------------------------------------------------------


def noise_made_twice(patch: pytest.MonkeyPatch) -> None:
    real, seen = Layout.sums, set[int]()

    def twice(layout: Layout, *given: Any, step: int, **more: Any) -> Any:
        found, further = (real(layout, *given, step=step, **more) for _ in range(2))
        if step in seen:
            for part, noise in zip(found.noise.values(), further.noise.values(), strict=True):
                part.add_(noise)
        seen.add(step)
        return found

    patch.setattr(Layout, "sums", twice)


def records_added_twice(patch: pytest.MonkeyPatch) -> None:
    real, made = Layout.sums, dict[int, Any]()
    patch.setattr(
        Layout,
        "sums",
        lambda *given, step, **more: made.setdefault(step, real(*given, step=step, **more)),
    )


def records_lost(patch: pytest.MonkeyPatch) -> None:
    """Let the second try continue at the batch that failed, with sums from the beginning."""
    real = step._parts

    def rest(run: Any, number: int, count: int) -> Any:
        whole = run.physical.at(number) == 8
        return (part for part in real(run, number, count) if whole or part.rows.start >= 8)

    patch.setattr(step, "_parts", rest)


def half_of_the_batch_lost(patch: pytest.MonkeyPatch) -> None:
    """Count a failed part as done."""
    real = step.within_memory

    def forgiving(function: Any, numbers: int) -> Any:
        return (*real(function, numbers)[:-1], 0.0)

    patch.setattr(step, "within_memory", forgiving)


def random_numbers_go_on(patch: pytest.MonkeyPatch) -> None:
    """Let the second try draw other numbers for the model than a first one would."""
    real = step._model_randomness
    count = [0]

    def moved(generator: Any, number: int, index: int, device: Any) -> Any:
        count[0] += 1
        return real(generator, number, count[0], device)

    patch.setattr(step, "_model_randomness", moved)


@pytest.mark.parametrize(
    ("bug", "kind"),
    [
        (noise_made_twice, "plain"),
        (noise_made_twice, "banded"),
        (records_added_twice, "plain"),
        (records_lost, "plain"),
        (half_of_the_batch_lost, "plain"),
        (random_numbers_go_on, "dropout"),
    ],
)
def test_planted_bugs_of_a_step_done_again(
    bug: Callable[[pytest.MonkeyPatch], None], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = session(kind)
    wanted = noted(session(kind, physical=4))
    bug(monkeypatch)
    Short(run, 4, begins=1, at="in the sum")
    found = noted(run)
    with pytest.raises(AssertionError):
        check_same(found, wanted)


# --- the resume state ---------------------------------------------------------------------------------------


def interrupted(path: Path, kind: str) -> dict[str, Any]:
    """Save a run after 3 steps, and resume it with less memory; return the releases of its last steps."""
    run = session(kind)
    noted(run, 3)
    run.save(path)
    Short(run, 4, begins=4)
    found = noted(run)
    assert len(run._run.physical._sizes) == 2
    return found


def check_resumed(path: Path, kind: str) -> None:
    wanted = interrupted(path, kind)
    resumed = session(kind, generator=seeded_generator(99))
    resumed.load(path)
    assert resumed.steps_done == 3
    check_same(noted(resumed), wanted)


@pytest.mark.parametrize("kind", ["plain", "dropout"])
def test_a_resumed_run_with_memory_takes_the_size_of_the_first(kind: str, tmp_path: Path) -> None:
    """A size that changes after the state was written is added to the state, with its step."""
    check_resumed(tmp_path / "state.pt", kind)


def test_planted_bug_a_saved_state_that_does_not_know_the_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "add_to_state", lambda *_: None)
    with pytest.raises(AssertionError):
        check_resumed(tmp_path / "state.pt", "dropout")


def test_the_state_of_another_run_is_left_alone(tmp_path: Path) -> None:
    run, other = session("dropout"), session("dropout", generator=seeded_generator(9))
    run.save(tmp_path / "state.pt")
    other.save(tmp_path / "state.pt")
    before = (tmp_path / "state.pt").read_bytes()
    Short(run, 4)
    noted(run, 1)
    assert (tmp_path / "state.pt").read_bytes() == before
    other.save(tmp_path / "other.pt")
    (tmp_path / "other.pt").unlink()
    Short(other, 4)
    noted(other, 1)
    assert not (tmp_path / "other.pt").exists()


def test_a_resumed_run_that_draws_takes_no_other_size(tmp_path: Path) -> None:
    """An earlier process may have taken the step: with other draws the noise would have another sum."""
    run = session("dropout")
    noted(run, 3)
    run.save(tmp_path / "state.pt")
    resumed = session("dropout")
    resumed.load(tmp_path / "state.pt")
    before = weights(resumed)
    Short(resumed, 4)
    for _ in range(2):
        with pytest.raises(PrivacyRefusal, match=r"in a resumed run.*random numbers"):
            one_step(resumed)
    assert resumed.steps_done == 3
    assert torch.equal(weights(resumed), before)


def test_a_resumed_run_that_draws_nothing_goes_on(tmp_path: Path) -> None:
    run = session()
    noted(run, 3)
    run.save(tmp_path / "state.pt")
    resumed = session()
    resumed.load(tmp_path / "state.pt")
    Short(resumed, 4)
    torch.testing.assert_close(noted(resumed)["weights"], noted(run)["weights"], rtol=0, atol=1e-12)


def test_another_given_size_is_another_run(tmp_path: Path) -> None:
    session().save(tmp_path / "state.pt")
    with pytest.raises(PrivacyRefusal, match=r"physical_batch_size \(was 8, is auto\)"):
        session(physical="auto").load(tmp_path / "state.pt")


# --- the largest size ---------------------------------------------------------------------------------------


@pytest.fixture
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sessions search for the size, as they do on a CUDA device."""
    made = step.PhysicalBatch.__init__
    monkeypatch.setattr(
        step.PhysicalBatch, "__init__", lambda *given, **named: made(*given, **{**named, "find": True})
    )


def test_on_a_cpu_auto_is_the_default() -> None:
    check_same(noted(session(physical="auto")), noted(session(physical=512)))


@pytest.mark.usefixtures("on_a_device")
@pytest.mark.parametrize(("most", "size"), [(5, 2), (0, 1), (13, 9), (1000, 38)])
def test_the_largest_size_that_fits(most: int, size: int) -> None:
    """A draw of 38, four standard deviations above 20, must fit in the physical batches of a draw of 20."""
    run = session(physical="auto")
    short = Short(run, most)
    if most == 0:
        with pytest.raises(InvalidInput, match="one record at a time"):
            one_step(run)
    else:
        noted(run, 1)
        assert short.failed == sum(calls > most for calls in short.calls)
        assert short.calls[-1] <= most
    assert run._run.physical._sizes == {0: size}


@pytest.mark.thorough(cases=3)
@pytest.mark.usefixtures("on_a_device")
@pytest.mark.parametrize("kind", KINDS)
def test_looking_for_the_size_leaves_nothing(kind: str) -> None:
    run = session(kind, physical="auto")
    Short(run, 8)  # a draw of 38 in 5 parts
    check_same(noted(run), noted(session(kind, physical=4)))
    assert run._run.physical._sizes == {0: 4}


@pytest.mark.usefixtures("on_a_device")
def test_the_search_sees_zeros_alone() -> None:
    run = session(physical="auto")
    seen: list[bool] = []
    engine: Any = run._run.engine
    real = engine.add_clipped_sum

    def looked(sums: Any, batch: Any, *rest: Any, **more: Any) -> Any:
        seen.append(all(not tensor.any() for tensor in batch))
        return real(sums, batch, *rest, **more)

    engine.add_clipped_sum = looked
    noted(run, 1)
    assert seen == [True] * (len(seen) - 1) + [False]
    assert len(seen) > 4


@pytest.mark.usefixtures("on_a_device")
def test_a_found_size_is_in_the_state(tmp_path: Path) -> None:
    """A state saved before the first step has it too; with more memory the run keeps it."""
    run = session("dropout", physical="auto")
    run.save(tmp_path / "state.pt")
    Short(run, 4)
    wanted = noted(run)
    resumed = session("dropout", physical="auto")
    resumed.load(tmp_path / "state.pt")
    check_same(noted(resumed), wanted)


@pytest.mark.usefixtures("on_a_device")
def test_planted_bug_a_search_on_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "new_zeros", lambda tensor, *shape, **_: tensor.new_ones(*shape))
    with pytest.raises(AssertionError):
        test_the_search_sees_zeros_alone()


# --- a device that fails -----------------------------------------------------------------------------------


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("engine", ["fast", "reference"])
@pytest.mark.parametrize(
    "error",
    [
        lambda: torch.AcceleratorError("CUDA error: unspecified launch failure\nCUDA kernel errors might be"),
        lambda: RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_device_that_fails_in_a_step_releases_nothing(
    engine: str, error: Callable[[], RuntimeError], first: bool
) -> None:
    """The engine does not take it for an error of the model; a repeated step is the same."""
    broken: list[RuntimeError] = []

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        if broken:
            raise broken.pop()
        return losses(model, x, y)

    run = session(engine=engine, loss=loss, physical=8)
    if not first:
        noted(run, 2)
    before, done = weights(run), run.steps_done
    broken.append(error())
    with pytest.raises(DeviceLost, match=rf"GPU failed in step {done}: CUDA error.*last saved state") as told:
        one_step(run)
    assert "kernel errors might" not in str(told.value)
    assert (run.steps_done, run.route) == (done, engine)
    assert torch.equal(weights(run), before)
    other = session(engine=engine, loss=loss, physical=8)
    if not first:
        noted(other, 2)
    check_same(noted(run), noted(other))


def test_memory_that_a_library_lacks_is_memory() -> None:
    run = session()
    Short(run, 4, error=lambda: RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublas`"))
    check_same(noted(run), noted(session(physical=4)))


def test_a_model_on_two_devices_is_refused() -> None:
    class Elsewhere(nn.Parameter):
        @property
        def device(self) -> torch.device:  # type: ignore[override]
            return torch.device("cuda", 1)

    model = net()
    layer: Any = model[0][0]  # type: ignore[index]
    layer.weight = Elsewhere(layer.weight.detach())
    with pytest.raises(UnsupportedModel, match=r"several devices \(cpu, cuda:1\).*device_map={\"\": 0}"):
        session(model=lambda: model)


# --- float16 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [FastEngine, ReferenceEngine])
def test_a_record_that_overflows_in_float16_counts_nothing(engine: type[GradientEngine]) -> None:
    """A record whose squared gradient overflows in float16 still adds its clipped part."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            return model(x).gather(1, y[:, None])[:, 0]  # type: ignore[no-any-return]

    x, y = table(8, D, CLASSES)
    x[0], x[1] = 1e6, 1000.0
    model, limit = network(D, CLASSES), torch.tensor([0.5])
    (sums, norms), (without, _) = (clipped(engine(model, loss, FlatClipping(0.5)), batch, limit) for batch in
                                   ((x, y), (x[1:], y[1:])))  # fmt: skip
    assert norms[0].isinf().all()
    assert norms[1:].isfinite().all()
    assert float(norms[1]) > 1000
    assert torch.equal(sums, without)
    (alone, _) = clipped(engine(model, loss, FlatClipping(0.5)), (x[1:2], y[1:2]), limit)
    assert float(alone.norm()) == pytest.approx(0.5, rel=1e-2)
    assert float(alone.norm()) <= 0.5


def clipped(engine: GradientEngine, batch: tuple[Tensor, ...], limit: Tensor) -> tuple[Tensor, Tensor]:
    sums = {name: torch.zeros_like(p) for name, p in engine.parameters.items()}
    raw = engine.add_clipped_sum(sums, batch, None, limit)
    return torch.cat([total.flatten() for total in sums.values()]), raw.raw_norms
