"""The session performs the plan: right sums, noise and divisor, and an exact resume."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from made import a_ledger, a_plan, a_session, finish, losses, network, no_noise, one_step, table, weights
from torch import Tensor, nn

from tacit.clipping import LEAN
from tacit.clipping.rules import AdaptiveClipping, ClippingRule
from tacit.errors import BudgetExceeded, InvalidInput, PrivacyRefusal, UnsupportedModel
from tacit.noise import on_device
from tacit.noise.gaussian import StepNoise, gaussian
from tacit.noise.generator import Generator
from tacit.plan import LossReport, Plan
from tacit.sampling import PoissonSampling
from tacit.testing import seeded_generator
from tacit.training import Alone, FlipAndCrop, PrivateSession, StepCharges, step
from tacit.training import ranks as replicas

N, D, CLASSES = 60, 5, 3


@pytest.fixture(autouse=True)
def fixed_draws() -> None:
    torch.manual_seed(0)


def data(seed: int = 0, n: int = N) -> tuple[Tensor, Tensor]:
    return table(n, D, CLASSES, seed=seed, dtype=torch.float64)


def model(seed: int = 1) -> nn.Module:
    return network(D, 4, CLASSES, seed=seed).double()


plan = a_plan


def session(
    net: nn.Module | None = None, *, records: Any = None, the_plan: Plan | None = None, **changes: Any
) -> PrivateSession:
    records = data() if records is None else records
    return a_session(net or model(), records, the_plan or plan(), momentum=0.9, **changes)


def oracle_sum(net: nn.Module, x: Tensor, y: Tensor, bound: float) -> Tensor:
    """Return the clipped sum by a plain loop of autograd calls, without code of the engines."""
    total = torch.zeros_like(weights(net))
    for row in range(len(x)):
        loss = F.cross_entropy(net(x[row : row + 1]), y[row : row + 1])
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])
        total += gradient / max(1.0, float(gradient.norm()) / bound)
    return total


def released(run: PrivateSession, monkeypatch: pytest.MonkeyPatch, noise: bool) -> Tensor:
    """Return the sum that one step gives the optimizer, with or without its noise, times the divisor."""
    if not noise:
        no_noise(monkeypatch)
    seen: list[Tensor] = []

    def keep(gradients: dict[str, Tensor]) -> None:
        seen.append(torch.cat([g.flatten() for g in gradients.values()]) * run.plan.expected_batch_size)

    monkeypatch.setattr(run._run.optimizer, "step", keep)
    one_step(run)
    monkeypatch.undo()
    return seen[0]


def members(run: PrivateSession, at: int = 0, records: int = N) -> Tensor:
    return torch.from_numpy(run.plan.sampling.indices(run._run.generator, at, records))


def check_sum(run: PrivateSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the release of the first step against the loop, divided by the public batch size alone."""
    chosen = members(run)
    assert len(chosen) != 20  # so that the realised size as divisor would be seen
    x, y = data()
    expected = oracle_sum(run.model, x[chosen], y[chosen], 0.5)
    assert torch.allclose(released(run, monkeypatch, noise=False), expected, atol=1e-10, rtol=0)


def with_each_step(monkeypatch: pytest.MonkeyPatch, change: Callable[[Tensor, Any, int], object]) -> None:
    """Let ``change`` spoil each gradient of a step, with the plan and the number of records drawn."""
    real = step.noisy_step

    def planted(run: Any, number: int, indices: Any) -> Any:
        out = real(run, number, indices)
        for gradient in out.gradients.values():
            change(gradient, run.plan, len(indices))
        return out

    monkeypatch.setattr("tacit.training.run.noisy_step", planted)


@pytest.mark.parametrize("engine", ["fast", "reference"])
@pytest.mark.parametrize("physical", [1, 3, 7, 512])
def test_step_releases_the_clipped_sum_of_the_drawn_records(
    engine: str, physical: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_sum(session(engine=engine, physical_batch_size=physical), monkeypatch)


def test_planted_bug_realised_batch_size_as_divisor(monkeypatch: pytest.MonkeyPatch) -> None:
    with_each_step(monkeypatch, lambda gradient, plan, drawn: gradient.mul_(plan.expected_batch_size / drawn))
    with pytest.MonkeyPatch.context() as inner, pytest.raises(AssertionError):
        check_sum(session(), inner)


def noise_of_steps(run: PrivateSession, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Return the noise (T, P) of steps in which no record takes part."""
    monkeypatch.setattr(PoissonSampling, "indices", lambda *_: torch.zeros(0, dtype=torch.int64).numpy())
    rows: list[Tensor] = []
    monkeypatch.setattr(
        run._run.optimizer, "step", lambda g: rows.append(torch.cat([v.flatten() for v in g.values()]) * 20)
    )
    finish(run)
    monkeypatch.undo()
    return torch.stack(rows)


def check_noise(run: PrivateSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the scale, and that steps and parameters are independent, with at least 2,000 draws."""
    from scipy import stats

    noise = noise_of_steps(run, monkeypatch)
    std = run.plan.gradient_noise_multiplier * 0.5
    assert len(noise) == run.plan.steps
    statistic, count = float((noise / std).square().sum()), noise.numel()
    assert 2 * min(stats.chi2.cdf(statistic, count), stats.chi2.sf(statistic, count)) > 1e-4
    correlation = torch.corrcoef(noise) - torch.eye(len(noise), dtype=noise.dtype)
    assert correlation.abs().max() < 6.5 / noise.shape[1] ** 0.5


def wide() -> nn.Module:
    return network(D, 400, seed=3).double()


def test_noise_of_empty_batches_has_the_stated_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    check_noise(session(wide()), monkeypatch)


@pytest.mark.parametrize("factor", [0.5, 2 / 3, 3 / 2, 1.05, 1 / 1.05])
def test_planted_bug_noise_scaled(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check finds halved noise, and smaller errors of scale."""
    monkeypatch.setattr(replicas, "StepNoise", lambda *a, std, **kw: StepNoise(*a, std=std * factor, **kw))
    net = wide()
    run = session(net)
    with pytest.MonkeyPatch.context() as inner, pytest.raises(AssertionError):
        check_noise(run, inner)


def test_planted_bug_noise_once_per_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "StepNoise", lambda g, **kw: StepNoise(g, **{**kw, "step": 0}))
    with pytest.MonkeyPatch.context() as inner, pytest.raises(AssertionError):
        check_noise(session(wide()), inner)


def test_planted_bug_noise_shared_by_two_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        net = nn.Sequential(nn.Linear(D, D), nn.Tanh(), nn.Linear(D, D)).double()
        with pytest.MonkeyPatch.context() as inner:
            noise = noise_of_steps(session(net, the_plan=plan(steps=40, noise_multiplier=3.0)), inner)
        first, second = noise[:, :25].flatten(), noise[:, 30:55].flatten()
        assert torch.corrcoef(torch.stack([first, second]))[0, 1].abs() < 0.2

    check()
    real = StepNoise.fill_each
    monkeypatch.setattr(
        StepNoise, "fill_each", lambda noise, outs: [real(noise, {0: out}) for out in outs.values()]
    )
    with pytest.raises(AssertionError):
        check()


@pytest.mark.parametrize("first", ["small", "large", "last"])
def test_each_parameter_has_the_noise_of_its_own_address(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise does not depend on the order of requests, or on the parameters drawn together."""
    monkeypatch.setenv("TACIT_NATIVE", "0")
    shapes = {
        "small": (3,),
        "double": (2, 2),
        "large": (70_000,),
        "empty": (0,),
        "more": (40, 50),
        "last": (7,),
    }
    parameters = {
        name: torch.empty(shape, dtype=torch.float64 if name == "double" else torch.float32)
        for name, shape in shapes.items()
    }
    generator = seeded_generator(3)
    buffers = replicas._NoiseBuffers(parameters, generator, 2.0, 5, torch.device("cpu"), Alone())
    assert buffers[first].shape == shapes[first]
    for index, (name, parameter) in enumerate(parameters.items()):
        want = gaussian(generator, shapes[name], std=2.0, step=5, index=index, dtype=parameter.dtype)
        assert torch.equal(buffers[name], want)


def check_steps_taken(run: PrivateSession) -> None:
    moved = 0
    for batch in run.batches():
        before = weights(run.model)
        run.step(batch)
        moved += not torch.equal(before, weights(run.model))
    assert moved == run.plan.steps == run.steps_done


TINY = plan(batch_size=1, records=10**9, delta=1e-12, steps=5)


def test_empty_batches_take_a_noisy_step() -> None:
    check_steps_taken(session(the_plan=TINY))


def test_planted_bug_empty_batch_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    with_each_step(monkeypatch, lambda gradient, plan, drawn: drawn or gradient.zero_())
    with pytest.raises(AssertionError):
        check_steps_taken(session(the_plan=TINY))


def resumed_run(path: Path, stop: int) -> nn.Module:
    """Stop after ``stop`` steps, drop the session, and resume from the file."""
    finish(session(ema_decay=0.9), steps=stop).save(path)
    net = model(seed=99)
    run = session(net, generator=Generator.from_os(), ema_decay=0.9)
    run.load(path)
    return finish(run).current_model


@pytest.mark.untraced
@pytest.mark.parametrize("stop", [1, 5, 11, 12])
def test_resume_is_exact(stop: int, tmp_path: Path) -> None:
    whole = finish(session(ema_decay=0.9)).current_model
    assert torch.equal(weights(resumed_run(tmp_path / "state.pt", stop)), weights(whole))


def dropping(hidden: nn.Module) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        layers = [nn.Linear(D, 8), nn.Dropout(0.5), hidden, nn.Linear(8, 8), nn.Dropout(0.5)]
        return nn.Sequential(*layers, nn.Linear(8, CLASSES)).double()


class Counted(nn.Module):
    """Computes a shape from the count of positive numbers, which vmap does not support."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.0 * len((x > 0).nonzero())


@pytest.mark.parametrize(("hidden", "engine"), [(nn.Tanh(), "fast"), (Counted(), "reference")])
def test_a_resumed_run_with_dropout_is_exact(hidden: nn.Module, engine: str, tmp_path: Path) -> None:
    """Dropout draws the same numbers as without the stop, with either engine."""
    whole = finish(session(dropping(hidden), engine=engine))
    assert whole.route == engine
    finish(session(dropping(hidden), engine=engine), steps=5).save(tmp_path / "state.pt")
    run = session(dropping(hidden), engine=engine, generator=Generator.from_os())
    run.load(tmp_path / "state.pt")
    assert torch.equal(weights(finish(run).model), weights(whole.model))


def test_a_model_that_vmap_cannot_run_is_refused_and_the_reference_is_named() -> None:
    run = session(dropping(Counted()))
    with pytest.raises(UnsupportedModel, match=r'nonzero depends on values.*engine="reference"'):
        one_step(run)


def test_planted_bug_resume_from_step_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = finish(session(ema_decay=0.9)).current_model
    real = PrivateSession.load

    def planted(self: PrivateSession, path: Path) -> dict[str, Any]:
        extra = real(self, path)
        self._run.done = 0
        return extra

    monkeypatch.setattr(PrivateSession, "load", planted)
    assert not torch.equal(weights(resumed_run(tmp_path / "state.pt", 5)), weights(whole))


@pytest.mark.parametrize(
    "changes",
    [
        {"records": data(seed=5)},
        {"the_plan": plan(clipping=0.6)},
        {"the_plan": plan(steps=13)},
        {"physical_batch_size": 7},
        {"engine": "reference"},
    ],
)
def test_resume_with_anything_else_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    finish(session(), steps=4).save(tmp_path / "state.pt")
    with pytest.raises(PrivacyRefusal, match="has no noise"):
        session(**changes).load(tmp_path / "state.pt")


def test_resume_state_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    session().save(path)
    assert path.stat().st_mode & 0o077 == 0
    assert [item.name for item in tmp_path.iterdir()] == ["state.pt"]


def test_broken_and_missing_states_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no resume state"):
        session().load(tmp_path / "nothing.pt")
    (tmp_path / "half.pt").write_bytes(b"PK\x03\x04 half a file")
    with pytest.raises(InvalidInput, match="cannot be read as a resume state"):
        session().load(tmp_path / "half.pt")
    torch.save({"format": 6}, tmp_path / "other.pt")
    with pytest.raises(InvalidInput, match=r"Tacit 0\.3"):
        session().load(tmp_path / "other.pt")


def test_full_disk_leaves_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.pt"
    run = finish(session(), steps=3)
    run.save(path)
    before = path.read_bytes()

    def full(state: Any, file: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space"):
        run.save(path)
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["state.pt"]


def test_plan_ends() -> None:
    run = finish(session())
    assert list(run.batches()) == []
    with pytest.raises(BudgetExceeded, match="all 12 steps of the plan are done"):
        run.step(type(next(session().batches()))(12))
    assert run.epsilon == pytest.approx(run.plan.epsilon, rel=1e-6)


def test_a_turn_is_taken_once_and_in_order() -> None:
    run = session()
    batch = next(run.batches())
    run.step(batch)
    with pytest.raises(PrivacyRefusal, match=r"is out of order; the next one is"):
        run.step(batch)
    turns = run.batches()
    next(turns)
    with pytest.raises(InvalidInput, match="was skipped"):
        next(turns)
    with pytest.raises(InvalidInput, match="must come from session"):
        run.step("batch")  # type: ignore[arg-type]


def test_epochs_cover_the_plan_and_have_a_length() -> None:
    """A bar such as tqdm asks for the length."""
    run = session(the_plan=plan(steps=7))
    sizes, lengths = [], [len(run.batches())]  # type: ignore[arg-type]
    while run.steps_done < 7:
        before, epoch = run.steps_done, run.epoch()
        lengths.append(len(epoch))  # type: ignore[arg-type]
        for batch in epoch:
            run.step(batch)
        sizes.append(run.steps_done - before)
    assert sizes == [3, 3, 1]
    assert lengths == [7, *sizes]
    assert len(run.epoch()) == 0  # type: ignore[arg-type]


def test_stray_gradients_are_refused() -> None:
    net = model()
    run = session(net)
    x, y = data()
    torch.autograd.backward(losses(net, x, y).mean())
    with pytest.raises(PrivacyRefusal, match="gradients without noise"):
        one_step(run)


def test_global_random_state_is_untouched() -> None:
    state = torch.random.get_rng_state()
    net = nn.Sequential(nn.Linear(D, 4), nn.Dropout(0.5), nn.Linear(4, CLASSES)).double()
    state = torch.random.get_rng_state()
    finish(session(net), steps=2)
    assert torch.equal(state, torch.random.get_rng_state())


def test_mean_loss_is_refused_with_the_fix() -> None:
    run = session(loss=lambda net, x, y: F.cross_entropy(net(x), y))
    with pytest.raises(InvalidInput, match='reduction="none"'):
        finish(run)


def test_batch_norm_is_refused_with_the_fix() -> None:
    net = nn.Sequential(nn.Linear(D, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES)).double()
    with pytest.raises(UnsupportedModel, match="make_private_ready"):
        session(net)


def test_number_of_records_must_be_right_where_it_is_public() -> None:
    with pytest.raises(InvalidInput, match="must be exact"):
        session(the_plan=plan(records=61, adjacency="replace-one", batch_size=None, steps=3))
    session(the_plan=plan(records=61))  # a public figure under add-remove


@pytest.mark.untraced
@pytest.mark.parametrize(
    "kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.NAdam]
)
def test_any_optimizer_works_and_resumes(kind: Any, tmp_path: Path) -> None:
    def make() -> PrivateSession:
        net = model()
        return session(net, optimizer=kind(net.parameters(), lr=0.01))

    whole = weights(finish(make()).model)
    finish(make(), steps=5).save(tmp_path / "s.pt")
    run = make()
    run.load(tmp_path / "s.pt")
    assert torch.equal(weights(finish(run).model), whole)


def test_a_lean_run_is_the_same_run_and_stays_lean(tmp_path: Path) -> None:
    whole = weights(finish(session()).model)
    lean = finish(session(memory=LEAN), steps=5)
    lean.save(tmp_path / "s.pt")
    with pytest.raises(PrivacyRefusal, match="Different: the engine"):
        session().load(tmp_path / "s.pt")  # another order of summation under the same noise
    again = session(memory=LEAN)
    again.load(tmp_path / "s.pt")
    assert torch.allclose(weights(finish(again).model), whole, atol=1e-12)
    with pytest.raises(InvalidInput, match="not apply to the reference engine"):
        session(engine="reference", memory=LEAN)


def test_frozen_parameters_stay() -> None:
    net = model()
    first = next(net.parameters())
    first.requires_grad_(False)
    before = first.clone()
    finish(session(net, optimizer=torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.5)))
    assert torch.equal(first, before)


@pytest.mark.untraced
def test_loss_report_is_noisy_and_near_the_truth() -> None:
    net = model()
    x, y = data()
    truth = float(losses(net, x, y).detach().mean())
    reported = []
    for seed in range(30):
        run = session(
            model(),
            the_plan=plan(batch_size=None, loss_report=LossReport(bound=3.0)),
            generator=seeded_generator(seed),
        )
        loss = one_step(run).loss
        assert loss is not None
        reported.append(loss)
    noise = 3.0 * 5.0 / N  # bound * s_l / B
    mean = sum(reported) / len(reported)
    assert abs(mean - truth) < 5 * noise / 30**0.5
    spread = float(torch.tensor(reported).std())
    assert 0.6 * noise < spread < 1.5 * noise
    assert finish(session(), steps=1).step(type(next(session().batches()))(1)).loss is None


def gradient_norm(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    gradients = torch.autograd.grad(losses(net, x, y).sum(), list(net.parameters()))
    norm: Tensor = torch.linalg.vector_norm(torch.cat([g.flatten() for g in gradients]))
    return norm


def test_adaptive_clipping_finds_the_median() -> None:
    """Steps of the threshold end near the median of the unclipped norms, from far below and above."""
    x, y = data(n=2000)
    for start in (0.01, 20.0):
        rule: ClippingRule = AdaptiveClipping(start, learning_rate=0.5)
        the_plan = plan(
            records=2000, delta=1e-5, batch_size=1000, steps=60, clipping=rule, noise_multiplier=4.0
        )
        net = model()
        run = finish(a_session(net, (x, y), the_plan, lr=0.0, generator=seeded_generator(2)))
        norms = torch.stack([gradient_norm(net, x[i : i + 1], y[i : i + 1]) for i in range(300)])
        assert run._run.thresholds[0] == pytest.approx(float(norms.median()), rel=0.15)


def test_adaptive_threshold_moves_only_after_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clip, noise and count of a step use the threshold of the step before."""
    run = session(the_plan=plan(clipping=AdaptiveClipping(0.5, count_noise=50.0)))
    check_sum(run, monkeypatch)
    assert run._run.thresholds != [0.5]


def released_of_pictures(
    pictures: Tensor, monkeypatch: pytest.MonkeyPatch, views: int = 1, **changes: Any
) -> Tensor:
    net = nn.Sequential(nn.Flatten(), network(pictures[0].numel(), CLASSES)).double()
    run = session(net, records=(pictures, data()[1]), the_plan=plan(views=views), **changes)
    return released(run, monkeypatch, noise=False)


def test_views_are_averaged_and_clipped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """K views that all equal the record count as the record."""
    pictures = data()[0][:, :4].reshape(N, 1, 2, 2)
    alone = released_of_pictures(pictures, monkeypatch)
    alike = released_of_pictures(pictures, monkeypatch, 3, augmentation=FlipAndCrop(pad=0, flip=False))
    assert torch.allclose(alone, alike, atol=1e-10, rtol=0)


def test_views_do_not_depend_on_the_microbatch(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(N, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    few, many = (
        released_of_pictures(x, monkeypatch, 4, augmentation=FlipAndCrop(pad=2), physical_batch_size=size)
        for size in (3, 512)
    )
    assert torch.allclose(few, many, atol=1e-10, rtol=0)


def test_views_need_an_augmentation_and_pictures() -> None:
    with pytest.raises(InvalidInput, match="Pass an augmentation"):
        session(the_plan=plan(views=2))
    with pytest.raises(InvalidInput, match="needs images"):
        finish(session(the_plan=plan(views=2), augmentation=FlipAndCrop()))


def test_flip_and_crop_moves_and_mirrors() -> None:
    picture = torch.arange(16.0).reshape(1, 1, 4, 4)
    centre = torch.tensor([[[0.5, 0.5, 0.9]]])
    assert torch.equal(FlipAndCrop(pad=1).views(picture, centre), picture)
    mirrored = FlipAndCrop(pad=1).views(picture, torch.tensor([[[0.5, 0.5, 0.1]]]))
    assert torch.equal(mirrored, picture.flip(3))
    moved = FlipAndCrop(pad=1).views(picture, torch.tensor([[[0.99, 0.5, 0.9]]]))
    assert torch.equal(moved[0, 0, :3], picture[0, 0, 1:])


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_run_equals_the_cpu_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_device, "draws", lambda like: False)  # the device's draws are others
    here = weights(finish(session()).model)
    there = weights(finish(session(model().cuda())).model).cpu()
    assert torch.allclose(here, there, atol=1e-8)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_views_made_on_the_device_are_those_of_the_cpu() -> None:
    pictures, uniforms = torch.rand(5, 3, 8, 8), torch.rand(5, 4, 3)
    made = FlipAndCrop(pad=2).views(pictures.cuda(), uniforms.cuda())
    assert made.is_cuda
    assert torch.equal(made.cpu(), FlipAndCrop(pad=2).views(pictures, uniforms))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_run_resumes_where_its_noise_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, begun = (session(model().cuda(), generator=seeded_generator(9)) for _ in range(2))
    finish(whole)
    one_step(begun)
    begun.save(tmp_path / "state")
    resumed = session(model().cuda())
    resumed.load(tmp_path / "state")
    assert torch.allclose(weights(finish(resumed).model), weights(whole.model), atol=1e-8)
    with pytest.raises(PrivacyRefusal, match="Different: the device that draws the noise"):
        session().load(tmp_path / "state")
    monkeypatch.setattr(on_device, "draws", lambda like: False)
    with pytest.raises(PrivacyRefusal, match="Different: the device that draws the noise"):
        session(model().cuda()).load(tmp_path / "state")


def test_noise_drawn_ahead_is_the_same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_device, "draws", lambda like: False)
    net, generator = model(), seeded_generator(3)
    named = dict(net.named_parameters())
    inline, ahead = (
        replicas._NoiseBuffers(named, generator, 2.0, 5, torch.device(kind), Alone())
        for kind in ("cpu", "cuda")
    )
    for name in named:
        assert torch.equal(inline[name], ahead[name])
        assert ahead[name] is ahead[name]  # once drawn, it is the buffer that sums are added to


@pytest.mark.parametrize("part", [0.0, 0.01, 0.3, 0.5, 0.9, 0.999])
def test_a_state_that_was_cut_short_is_said_to_be_damaged(part: float, tmp_path: Path) -> None:
    """Torch has another error for each length."""
    path = tmp_path / "resume.pt"
    finish(session(), steps=1).save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    with pytest.raises(InvalidInput, match="damaged"):
        session().load(path)


def test_noise_with_an_end_within_reach_is_refused() -> None:
    """Draws end at 150.7 standard deviations; a record must not move one to near this end."""
    loud = plan(noise_multiplier=0.09, batch_size=None)
    with pytest.raises(PrivacyRefusal, match=r"noise_multiplier must be at least 0\.1 in a private session"):
        session(the_plan=loud, generator=None)
    session(the_plan=loud)  # a key for tests promises nothing
    session(the_plan=plan(noise_multiplier=0.1, batch_size=None), generator=None)


def test_noise_that_cannot_be_computed_with_is_refused_in_words() -> None:
    with pytest.raises(InvalidInput, match="too large"):
        _ = plan(noise_multiplier=1e300).gradient_noise_multiplier
    with pytest.raises(InvalidInput, match="too small"):
        _ = plan(noise_multiplier=1e-300).gradient_noise_multiplier


def test_what_a_statement_is_made_of_cannot_be_replaced() -> None:
    session = a_session(network(4, 2), table(), a_plan())
    for name in ("plan", "model", "steps_done", "private", "charges", "epsilon", "randomness", "falling"):
        with pytest.raises(AttributeError):
            setattr(session, name, getattr(session, name))
    charges = StepCharges(a_ledger(), "rows", a_plan(noise_multiplier=4.0))
    for name in ("plan", "ledger", "dataset", "block", "chunk", "owned_by", "one_record_per_unit"):
        with pytest.raises(AttributeError):
            setattr(charges, name, getattr(charges, name))
