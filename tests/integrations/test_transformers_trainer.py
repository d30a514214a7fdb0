"""transformers' Trainer with private steps: the bare loop's bits, its schedule, its log, and a way back."""

from __future__ import annotations

import math
import os
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from looped import (
    RATE,
    SCHEDULE,
    STEPS,
    Bare,
    bare_loop,
    gpt2,
    holds,
    ledger_of_texts,
    new_session,
    plan,
    rows,
    spend,
    texts,
)
from made import weights
from torch import Tensor
from transformers import TrainerCallback

from tacit import Plan, PrivateSession, collate
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.integrations.loops import SessionStates, SteppedBySession, ticket_loader, ticket_of
from tacit.integrations.transformers import PrivateTrainer, training_arguments
from tacit.ledger import Ledger
from tacit.losses import causal
from tacit.plan import LossReport
from tacit.testing import seeded_generator
from tacit.training import StepCharges

TOKENS, HELD_OUT = texts(), texts(4, seed=1)
PLAN = plan(loss_report=LossReport())


def settings(folder: Path, the_plan: Plan = PLAN, **changes: Any) -> Any:
    given: dict[str, Any] = {
        "learning_rate": RATE,
        "warmup_steps": 2,
        "optim": "adamw_torch",
        "save_steps": 2,
        "logging_steps": 2,
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": [],
    }
    return training_arguments(the_plan, str(folder / "out"), **(given | changes))


def trainer(folder: Path, the_plan: Plan = PLAN, **changes: Any) -> PrivateTrainer:
    """``changes`` are of the settings, but for those that are PrivateTrainer's own."""
    own = {"callbacks", "eval_dataset", "charges", "data_collator", "train_dataset", "state_folder"}
    given: dict[str, Any] = {"train_dataset": rows(TOKENS), "state_folder": folder / "states"}
    given |= {name: value for name, value in changes.items() if name in own}
    if "charges" not in given:
        given["generator"] = seeded_generator(5)
    args = settings(folder, the_plan, **{name: v for name, v in changes.items() if name not in own})
    return PrivateTrainer(gpt2(), args, the_plan, loss=causal(), **given)


class Watch(TrainerCallback):  # type: ignore[misc]
    """Records learning rates; ends the process, as a kill would, after ``die`` steps."""

    def __init__(self, die: int | None = None) -> None:
        self.die, self.rates, self.steps = die, [], 0  # type: ignore[var-annotated]

    def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.steps += 1
        if self.steps == self.die:
            raise KeyboardInterrupt


class Whole(NamedTuple):
    trainer: PrivateTrainer
    folder: Path
    watch: Watch
    rates: list[float]
    collated: list[int]
    output: Any


@pytest.fixture(scope="module")
def bare() -> Bare:
    return bare_loop(new_session(PLAN, {"input_ids": TOKENS, "labels": TOKENS}))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A run to its end, with all that a Trainer does meanwhile."""
    folder, watch, rates = tmp_path_factory.mktemp("whole"), Watch(), []
    collated: list[int] = []

    def collate(records: list[Any]) -> dict[str, Tensor]:
        collated.append(len(records))
        return {name: torch.stack([record[name] for record in records]) for name in records[0]}

    made = trainer(
        folder,
        callbacks=[watch],
        data_collator=collate,
        train_dataset=rows(TOKENS, text="not for the model"),
        eval_dataset=rows(HELD_OUT),
        eval_strategy="epoch",
        save_total_limit=2,
    )
    made.session.optimizer.register_step_pre_hook(
        lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"])
    )
    collated.clear()
    output = made.train()
    return Whole(made, folder, watch, rates, collated, output)


# --- the same steps -----------------------------------------------------------------------------------------


def test_the_weights_are_those_of_the_bare_loop(bare: Bare, whole: Whole) -> None:
    assert torch.equal(weights(whole.trainer.model), bare.weights)
    assert not torch.equal(bare.weights, weights(gpt2()))
    assert whole.trainer.session.steps_done == whole.output.global_step == STEPS


def test_the_schedule_moves_the_rate_of_the_step_itself(whole: Whole) -> None:
    assert whole.rates == pytest.approx([part * RATE for part in SCHEDULE[:STEPS]])
    assert whole.watch.rates == whole.rates


def test_training_collates_one_record_at_a_time(whole: Whole) -> None:
    evaluations = [4] * 3  # at the end of each pass, four held-out records
    assert sorted(whole.collated)[-3:] == evaluations
    assert set(whole.collated) == {1, 4}
    assert whole.collated.count(4) == 3


def test_noise_of_a_thousand_ruins_the_model(tmp_path: Path) -> None:
    made = trainer(
        tmp_path, plan(noise_multiplier=1000.0), save_strategy="no", state_folder=None,
        eval_dataset=rows(HELD_OUT), optim="sgd", learning_rate=1.0,
    )  # fmt: skip
    before = made.evaluate()["eval_loss"]
    made.train()
    after = made.evaluate()["eval_loss"]
    assert before < 3.0 < 30.0 < after


# --- the log ------------------------------------------------------------------------------------------------


def test_the_log_has_noisy_losses_alone(bare: Bare, whole: Whole) -> None:
    log = [line for line in whole.trainer.state.log_history if "learning_rate" in line]
    assert [line["step"] for line in log] == [2, 4, 6]
    for line in log:
        assert set(line) == {"loss", "learning_rate", "epsilon", "epoch", "step"}
        mean = sum(bare.losses[line["step"] - 2 : line["step"]]) / 2
        assert line["loss"] == pytest.approx(mean, rel=1e-5)
        assert line["epsilon"] == PLAN.epsilon_after([line["step"]])[0]
    last = whole.trainer.state.log_history[-1]
    assert last["epsilon"] == PLAN.epsilon
    assert "total_flos" not in last
    assert whole.output.training_loss == pytest.approx(sum(bare.losses) / STEPS, rel=1e-5)


def test_held_out_records_are_evaluated_after_each_pass(whole: Whole) -> None:
    found = [line for line in whole.trainer.state.log_history if "eval_loss" in line]
    assert [line["step"] for line in found] == [3, 6, 7]
    with torch.no_grad():
        model = whole.trainer.model.eval()
        loss = float(model(input_ids=HELD_OUT, labels=HELD_OUT).loss)
        model.train()
    assert found[-1]["eval_loss"] == pytest.approx(loss, rel=1e-5)


def test_without_a_loss_report_no_loss_is_told(tmp_path: Path) -> None:
    made = trainer(tmp_path, plan(steps=2), save_strategy="no", state_folder=None)
    output = made.train()
    assert math.isnan(output.training_loss)
    assert all("loss" not in line and "train_loss" not in line for line in made.state.log_history)
    assert made.state.log_history[0]["epsilon"] == made.session.epsilon
    assert "train_loss" not in output.metrics
    with pytest.raises(InvalidInput, match="2 of the plan's 2 steps are taken already"):
        made.train()


# --- checkpoints and the way back ---------------------------------------------------------------------------


def files(folder: Path) -> list[Path]:
    return [Path(where) / name for where, _, names in os.walk(folder) for name in names]


def test_no_file_of_the_trainer_holds_the_key(whole: Whole) -> None:
    key, _ = seeded_generator(5).secret_state()
    states = files(whole.folder / "states")
    assert all(holds(file, key) for file in states)
    assert all(file.stat().st_mode & 0o077 == 0 for file in states)
    assert len(files(whole.folder / "out")) > 10
    assert not any(holds(file, key) for file in files(whole.folder / "out"))


def test_a_state_goes_with_its_checkpoint(whole: Whole) -> None:
    kept = {path.name for path in (whole.folder / "out").iterdir()}
    assert kept == {"checkpoint-6", "checkpoint-7"}
    assert {path.name for path in (whole.folder / "states").iterdir()} == {"step-6.session", "step-7.session"}


def test_a_resumed_run_ends_with_the_same_bits(bare: Bare, tmp_path: Path) -> None:
    """It dies within a pass of three steps, and all after the checkpoint is lost."""
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path, callbacks=[Watch(die=5)]).train()
    with pytest.raises(
        InvalidInput, match=r"states of another run \(steps 2, 4\).*resume_from_checkpoint=True"
    ):
        trainer(tmp_path).train()
    again, watch = trainer(tmp_path), Watch()
    again.add_callback(watch)
    assert again.train(resume_from_checkpoint=True).global_step == STEPS
    assert watch.rates == pytest.approx([part * RATE for part in SCHEDULE[4:STEPS]])
    assert torch.equal(weights(again.model), bare.weights)
    third = trainer(tmp_path)
    third.train(resume_from_checkpoint=tmp_path / "out" / "checkpoint-2")
    assert torch.equal(weights(third.model), bare.weights)


def test_what_cannot_be_resumed_is_refused(whole: Whole, tmp_path: Path) -> None:
    old = whole.folder / "out" / "checkpoint-6"
    with pytest.raises(InvalidInput, match=r"has no state of step 6; .* states of no steps"):
        trainer(tmp_path).train(resume_from_checkpoint=old)
    with pytest.raises(InvalidInput, match=r"no checkpoint in .* matches a session state in"):
        trainer(tmp_path).train(resume_from_checkpoint=True)
    with pytest.raises(InvalidInput, match="is no checkpoint of a Trainer"):
        trainer(tmp_path).train(resume_from_checkpoint=tmp_path)
    without = trainer(tmp_path, save_only_model=True, state_folder=None)
    with pytest.raises(InvalidInput, match="cannot resume without the session's state"):
        without.train(resume_from_checkpoint=old)
    with pytest.raises(PrivacyRefusal, match="the plan"):
        trainer(whole.folder, plan(noise_multiplier=2.0)).train(resume_from_checkpoint=old)


class Spend(TrainerCallback):  # type: ignore[misc]
    """Somebody who takes what is left of the budget while the third step runs."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 3:
            spend(self.ledger)


def test_a_ledger_ends_the_run_and_the_state_is_saved(tmp_path: Path) -> None:
    with closing(ledger_of_texts(tmp_path / "budget.db")) as ledger:
        account = StepCharges(ledger, "texts", plan(), chunk=5)
        made = trainer(tmp_path, plan(), charges=account, callbacks=[Spend(ledger)])
        assert made.train().global_step == 5
        assert made.session.stopped is not None
        assert sorted(path.name for path in (tmp_path / "states").iterdir()) == [
            "step-2.session", "step-4.session", "step-5.session",
        ]  # fmt: skip
        assert made.state.log_history[-1]["epsilon"] == plan().epsilon_after([5])[0]


# --- where the state may lie --------------------------------------------------------------------------------


def test_the_state_lies_in_no_folder_that_is_shared(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "out")
    for folder in ("out", "out/states", "link/states", "states/../out/x"):
        with pytest.raises(PrivacyRefusal, match=r"is inside output_dir .* secret key of the noise"):
            trainer(tmp_path, state_folder=tmp_path / folder)
    with pytest.raises(InvalidInput, match=r"Pass state_folder=.*save_strategy=.*save_only_model=True"):
        trainer(tmp_path, state_folder=None)
    assert SessionStates(tmp_path / "outer", {"output_dir": tmp_path / "out"}).steps() == []


# --- no step but a private one ------------------------------------------------------------------------------


def session() -> PrivateSession:
    return new_session(PLAN, {"input_ids": TOKENS})


def test_the_loop_cannot_step_without_the_session() -> None:
    shown = SteppedBySession(session())
    with pytest.raises(PrivacyRefusal, match=r"took 0 private steps for one optimizer step"):
        shown.step()


def test_a_batch_that_is_no_ticket_is_refused() -> None:
    run = session()
    for batch in ({"input_ids": TOKENS}, TOKENS, {"ticket": 0}, {"ticket": torch.zeros(2)}):
        with pytest.raises(PrivacyRefusal, match="must come from the private loader"):
            ticket_of(run, batch)


def test_a_ticket_lives_through_what_loops_do_with_a_batch() -> None:
    run = session()
    batch = next(iter(ticket_loader(run, ended=lambda: None)))
    moved = {name: value.to("cpu").pin_memory() if torch.cuda.is_available() else value.to("cpu")
             for name, value in batch.items()}  # fmt: skip
    assert "labels" not in moved
    assert ticket_of(run, moved).step == 0


def test_a_trainer_of_ones_own_is_refused() -> None:
    with pytest.raises(PrivacyRefusal, match="Mine is a subclass of PrivateTrainer"):

        class Mine(PrivateTrainer):  # type: ignore[misc]
            def compute_loss(self, *arguments: Any) -> Any:
                """A loss that no step would use."""


def test_a_collator_may_have_several_lengths(tmp_path: Path) -> None:
    """The weights are those of one length, up to rounding."""
    length = TOKENS.shape[1]
    cut = [{name: part[: 1 + i % length] for name, part in row.items()} for i, row in enumerate(rows(TOKENS))]
    found = []
    for lengths in (length, (2, length)):
        pad = collate.pad(length=dict.fromkeys(cut[0], lengths), value={"labels": -100})
        folder = tmp_path / str(lengths)
        trained = trainer(folder, train_dataset=cut, data_collator=pad, save_strategy="no")
        for module in trained.model.modules():  # a record's draws depend on the physical batches
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        assert (trained.session._run.lengths is None) == (lengths == length)
        trained.train()
        found.append(weights(trained.session))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
