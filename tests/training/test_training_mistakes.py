"""Ordinary mistakes: the error says what to do in a session, and the advice works."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from made import a_plan, a_session, finish, losses, one_step, table
from torch import Tensor, nn

from tacit import LossReport, Plan, PrivateSession
from tacit.errors import Diverged, LossWarning, PrivacyRefusal, UnsupportedModel

N = 60


plan, data = a_plan, table


def session(model: nn.Module, *, the_plan: Plan | None = None, **changes: Any) -> PrivateSession:
    records = changes.pop("data", None) or data()
    return a_session(model, records, the_plan or plan(), **{"lr": 0.1, **changes})


def test_the_generator_of_a_gan_beside_a_private_discriminator() -> None:
    discriminator, generator = nn.Linear(4, 2), nn.Linear(3, 4)
    run = session(discriminator)
    its_optimizer = torch.optim.SGD(generator.parameters(), lr=0.1)
    tickets = run.batches()
    run.step(next(tickets))

    def generator_step() -> None:
        its_optimizer.zero_grad()
        discriminator(generator(torch.randn(8, 3))).square().mean().backward()
        its_optimizer.step()

    generator_step()
    with pytest.raises(PrivacyRefusal, match=r"discriminator\.requires_grad_\(False\) before") as caught:
        run.step(next(tickets))
    assert "weight, bias" in str(caught.value)
    run.optimizer.zero_grad()
    for ticket in run.batches():
        discriminator.requires_grad_(False)
        generator_step()
        discriminator.requires_grad_(True)
        run.step(ticket)
    assert run.steps_done == 12


def test_a_discriminator_that_stays_frozen_is_named() -> None:
    model = nn.Linear(4, 2)
    run = session(model)
    model.requires_grad_(False)
    with pytest.raises(UnsupportedModel, match=r"frozen now or gone: bias, weight\).*Restore requires_grad"):
        one_step(run)


def test_gradual_unfreezing_says_the_two_ways_and_the_first_works() -> None:
    early, late = nn.Linear(4, 4), nn.Linear(4, 2)
    model = nn.Sequential(early, nn.Tanh(), late)
    early.requires_grad_(False)
    run = session(model)
    tickets = run.batches()
    run.step(next(tickets))
    early.requires_grad_(True)
    with pytest.raises(UnsupportedModel) as caught:
        run.step(next(tickets))
    for words in ("trainable now: 0.bias, 0.weight", 'group["lr"] = 0', "a new session for each stage"):
        assert words in str(caught.value)

    groups: list[dict[str, Any]] = [{"params": early.parameters(), "lr": 0.0}, {"params": late.parameters()}]
    run = session(model, optimizer=torch.optim.SGD(groups, lr=0.1))
    first, last = early.weight.detach().clone(), late.weight.detach().clone()
    for ticket in run.batches():
        if ticket.step == 6:
            assert torch.equal(early.weight, first)
            assert not torch.equal(late.weight, last)
            run.optimizer.param_groups[0]["lr"] = 0.1
        run.step(ticket)
    assert not torch.equal(early.weight, first)


def test_weights_that_become_nan_end_the_run_and_name_the_step() -> None:
    model = nn.Linear(4, 2)
    run = session(model, lr=1e38, the_plan=plan(clipping=1e3))
    with pytest.raises(Diverged) as caught:
        finish(run)
    done = run.steps_done
    assert f"after step {done - 1}: " in str(caught.value)
    assert "weight" in str(caught.value)
    assert "(now 1e+38)" in str(caught.value)
    assert not model.weight.isfinite().all()
    with pytest.raises(Diverged):  # whoever goes on is told again
        one_step(run)


def test_weights_are_looked_at_every_tenth_step_later() -> None:
    model = nn.Linear(4, 2)
    run = session(model, the_plan=plan(steps=30))
    for ticket in run.batches():
        if ticket.step == 11:
            with torch.no_grad():
                model.bias[0] = float("inf")
        if ticket.step == 19:
            with pytest.raises(Diverged, match="after step 19, or one of the nine before: "):
                run.step(ticket)
            return
        run.step(ticket)


def test_large_weights_that_are_finite_are_no_matter() -> None:
    """Their sum is beyond float32, and they are not."""
    model = nn.Linear(4, 2)
    with torch.no_grad():
        model.bias.fill_(3e38)
    run = session(model, lr=0.0)
    one_step(run)


def nan_losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return losses(model, x, y) * torch.tensor(-1.0).log()


def test_a_loss_that_is_nan_for_zeros_is_said_before_the_first_step() -> None:
    run = session(nn.Linear(4, 2), loss=nan_losses)
    with pytest.warns(LossWarning, match="NaN or infinite") as caught:
        one_step(run)
    assert len(caught) == 1


class Normed(nn.Module):
    """A layer that gives NaN for one record, and finite values for zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.linear(x)) + (1e4 - x[:, :1].clamp(min=0)).sqrt()


def test_a_loss_that_is_nan_for_one_record_is_not_said() -> None:
    """An error would reveal that some record has such a loss; it adds nothing to the sum."""
    x, y = data()
    x[7, 0] = 2e4
    run = session(Normed(), data=(x, y), the_plan=plan(batch_size=N))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        finish(run)
    assert all(p.isfinite().all() for p in run.model.parameters())


@pytest.mark.parametrize(("bound", "said"), [(0.05, 1), (5.0, 0)])
def test_a_noisy_loss_at_its_bound_is_said_once(bound: float, said: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2000, 4, generator=generator), torch.randint(0, 2, (2000,), generator=generator)
    settings = plan(delta=1e-4, records=2000, batch_size=2000, steps=40, loss_report=LossReport(bound))
    run = session(nn.Linear(4, 2), data=(x, y), the_plan=settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        finish(run)
    of_bound = [w for w in caught if "at its bound" in str(w.message)]
    assert [w.category for w in of_bound] == [LossWarning] * said
    for warning in of_bound:
        assert "at its bound, 0.05" in str(warning.message)
        assert "[privacy] loss_bound" in str(warning.message)


def saved(path: Path, **changes: Any) -> Path:
    run = session(nn.Linear(4, 2), **changes)
    one_step(run)
    run.save(path / "state")
    return path / "state"


def other_settings() -> PrivateSession:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters())
    return session(model, optimizer=optimizer, physical_batch_size=7, ema_decay=0.9, engine="reference")


DIFFERING: dict[str, tuple[Callable[[], PrivateSession], tuple[str, ...]]] = {
    "the plan": (
        lambda: session(nn.Linear(4, 2), the_plan=plan(steps=13, clipping=0.25)),
        ("FlatClipping(norm=0.5), is FlatClipping(norm=0.25)", "steps was 12, is 13"),
    ),
    "the model": (lambda: session(nn.Linear(4, 3)), ("weight was (2, 4), is (3, 4); bias was (2,)",)),
    "a bias": (lambda: session(nn.Linear(4, 2, bias=False)), ("is gone",)),
    "settings": (
        other_settings,
        ("(was SGD, is Adam)", "(was 512, is 7)", "ema_decay (was None, is 0.9)", "is ReferenceEngine)"),
    ),
}


@pytest.mark.parametrize("what", DIFFERING)
def test_a_refused_resume_says_what_differs(what: str, tmp_path: Path) -> None:
    state, (make, words) = saved(tmp_path), DIFFERING[what]
    with pytest.raises(PrivacyRefusal) as caught:
        make().load(state)
    assert [word for word in words if word not in str(caught.value)] == []
    assert "delta was" not in str(caught.value)


def test_a_refused_resume_shows_no_value_of_a_record(tmp_path: Path) -> None:
    x, y = data()
    state = saved(tmp_path)
    x[3, 1] = 4321.5
    with pytest.raises(PrivacyRefusal, match="the records") as caught:
        session(nn.Linear(4, 2), data=(x, y)).load(state)
    assert "4321" not in str(caught.value)


@pytest.mark.parametrize("engine", ["fast", "reference"])
@pytest.mark.parametrize("held", ["mean", "neighbours", "a copy", "a buffer", "an array"])
def test_a_loss_or_model_that_reads_the_records_themselves_is_refused(held: str, engine: str) -> None:
    X, y = data()
    of_session: Any = (X.numpy(), y.numpy()) if held == "an array" else (X, y)
    copy = X.clone()
    model: Any = nn.Linear(4, 2)
    model.register_buffer("stored", X)

    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        others: dict[str, Any] = {
            "mean": lambda: model(X).mean(0),
            "neighbours": lambda: X[3:7].mean() * torch.ones(2),
            "a copy": lambda: model(copy).mean(0),
            "a buffer": lambda: model.stored.sum() * torch.ones(2),
            "an array": lambda: torch.from_numpy(X.numpy()).mean() * torch.ones(2),
        }
        found: Tensor = losses(model, x, y) + (model(x) - others[held]()).square().mean(1)
        return found

    run = session(model, data=of_session, loss=loss, engine=engine)
    before = model.weight.clone()
    with pytest.raises(PrivacyRefusal, match="reads private records that are not its arguments"):
        one_step(run)
    assert run.steps_done == 0
    assert torch.equal(model.weight, before)


def test_public_tensors_in_a_loss_may_lie_beside_the_records() -> None:
    table = torch.randn(N + 20, 4)
    public = table[N:]

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        found: Tensor = losses(model, x, y) + (model(x) - model(public).mean(0)).square().mean(1)
        return found

    run = session(nn.Linear(4, 2), data=(table[:N], data()[1]), loss=loss)
    one_step(run)
    assert run.steps_done == 1


class GraphNetwork(nn.Module):
    """Two layers over the mean of a node's neighbours in its own graph, padded to a fixed size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(5, 16), nn.Linear(16, 16), nn.Linear(16, 2)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        mean = edges / edges.sum(2, keepdim=True).clamp(min=1)
        x = torch.tanh(self.first(x + mean @ x))
        x = torch.tanh(self.second(x + mean @ x))
        out: Tensor = self.last(x.mean(1))
        return out


def test_whole_graphs_as_examples_train() -> None:
    x, edges = torch.randn(N, 12, 5), (torch.rand(N, 12, 12) < 0.2).float()
    y = torch.randint(0, 2, (N,))

    def loss(model: nn.Module, x: Tensor, edges: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x, edges), y, reduction="none")

    run = session(GraphNetwork(), data=(x, edges, y), loss=loss)
    one_step(run)
    assert (run.route, run.steps_done) == ("fast", 1)
