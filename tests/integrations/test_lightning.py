"""Lightning's Trainer with private steps: the bare loop's bits, its schedule, and what it refuses."""

from __future__ import annotations

import math
import os
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
    spend,
    texts,
)
from made import weights
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from tacit import PrivateSession
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.losses import causal
from tacit.plan import LossReport
from tacit.testing import seeded_generator
from tacit.training import StepCharges

lightning = pytest.importorskip("lightning.pytorch")

from tacit.integrations.lightning import PrivateSteps  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:.*LeafSpec.* is deprecated:FutureWarning"
    ),  # Lightning's own use of torch
    pytest.mark.filterwarnings(
        "ignore:Using ModelCheckpoint with manual optimization"
    ),  # after the step: right
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* is not empty"),
    pytest.mark.filterwarnings("ignore:The 'val_dataloader' does not have many workers"),
]

TOKENS = texts()
PLAN = plan(loss_report=LossReport())
DATA = {"input_ids": TOKENS, "labels": TOKENS}


class Texts(lightning.LightningModule):  # type: ignore[misc, name-defined]
    def __init__(self, private: PrivateSteps, **broken: Any) -> None:
        super().__init__()
        self.automatic_optimization = broken.get("automatic", False)
        self.private, self.model = private, private.session.model
        self.rates: list[float] = []
        self.reports: list[float] = []
        self.places: list[int] = []
        self.broken = broken

    def configure_optimizers(self) -> Any:
        return self.broken.get("optimizer", self.private.optimizer)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.rates.append(self.optimizers().param_groups[0]["lr"])
        self.places.append(batch_idx)
        if self.broken.get("idle"):
            return
        report = self.private.step(batch)
        self.reports.append(report.loss or math.nan)
        self.log("loss", report.loss, batch_size=1)


class Checked(Texts):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", causal()(self.model, *batch).mean())


def private(folder: Path | None, session: PrivateSession | None = None) -> PrivateSteps:
    session = session or new_session(PLAN, DATA)
    schedule = LambdaLR(session.optimizer, lambda step: SCHEDULE[step])
    return PrivateSteps(
        session, schedule=schedule, state_folder=None if folder is None else folder / "states"
    )


def trainer(steps: PrivateSteps, folder: Path, *others: Any, **changes: Any) -> Any:
    given: dict[str, Any] = {
        "max_steps": STEPS, "accelerator": "cpu", "devices": 1, "logger": False, "default_root_dir": folder,
        "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False,
        "callbacks": [steps, *others], "num_sanity_val_steps": 0,
    }  # fmt: skip
    return lightning.Trainer(**(given | changes))


@pytest.fixture(scope="module")
def bare() -> Bare:
    return bare_loop(new_session(PLAN, DATA))


def test_a_run_is_the_bare_loop_and_one_that_dies_goes_on(bare: Bare, tmp_path: Path) -> None:
    """It dies within a pass of three steps, after the checkpoint of step 4; then it ends as if it had not."""

    def saves() -> Any:
        return lightning.callbacks.ModelCheckpoint(
            tmp_path / "out", every_n_train_steps=2, save_top_k=-1, filename="{step}"
        )

    held_out = DataLoader(TensorDataset(TOKENS[:4], TOKENS[:4]), batch_size=4)

    class Dies(lightning.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 5:
                raise RuntimeError("killed")

    first = private(tmp_path)
    module = Checked(first)
    died = trainer(first, tmp_path, saves(), Dies(), enable_checkpointing=True)
    with pytest.raises(RuntimeError, match="killed"):
        died.fit(module, first.tickets(), held_out)
    assert module.rates == pytest.approx([part * RATE for part in SCHEDULE[:5]])
    assert module.reports == bare.losses[:5]
    assert died.global_step == 5
    assert died.callback_metrics["val_loss"] > 0

    again = private(tmp_path)
    module = Checked(again)
    resumed = trainer(again, tmp_path, saves(), enable_checkpointing=True)
    resumed.fit(module, again.tickets(), held_out, ckpt_path=tmp_path / "out" / "step=4.ckpt")
    assert resumed.global_step == again.session.steps_done == STEPS
    assert module.rates == pytest.approx([part * RATE for part in SCHEDULE[4:STEPS]])
    assert module.reports == bare.losses[4:]
    assert torch.equal(weights(again.session.model), bare.weights)
    assert module.places == [1, 2, 0]  # within passes of three

    key, _ = seeded_generator(5).secret_state()
    assert {path.name for path in (tmp_path / "states").iterdir()} == {"step-4.session", "step-6.session"}
    assert all(holds(path, key) for path in (tmp_path / "states").iterdir())
    written = [Path(where) / name for where, _, names in os.walk(tmp_path / "out") for name in names]
    assert len(written) == 3
    assert not any(holds(path, key) for path in written)


def test_a_module_that_steps_by_itself_is_refused(tmp_path: Path) -> None:
    steps = private(None)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"automatic": True}, "Texts has automatic optimisation, so Lightning"),
        (
            {"optimizer": steps.session.optimizer},
            "configure_optimizers must return only self",
        ),
        ({"idle": True}, "training_step must take one private step"),
    ]
    for broken, why in cases:
        with pytest.raises(PrivacyRefusal, match=why):
            trainer(steps, tmp_path).fit(Texts(steps, **broken), steps.tickets())
    assert steps.session.steps_done == 0
    with pytest.raises(PrivacyRefusal, match=r"called outside Trainer.fit"):
        steps.step({"ticket": torch.tensor([0])})


def test_a_batch_of_records_is_no_ticket(tmp_path: Path) -> None:
    steps = private(None)
    loader = [{"input_ids": TOKENS[:8], "labels": TOKENS[:8]}]
    with pytest.raises(PrivacyRefusal, match="must come from the private loader"):
        trainer(steps, tmp_path).fit(Texts(steps), loader)


@pytest.mark.parametrize(
    ("changes", "kind", "why"),
    [
        (
            {"accumulate_grad_batches": 4},
            lightning.utilities.exceptions.MisconfigurationException,
            "accumulation",
        ),
        ({"gradient_clip_val": 1.0}, lightning.utilities.exceptions.MisconfigurationException, "clipping"),
        ({"precision": "bf16-mixed"}, PrivacyRefusal, "precision='bf16-mixed'"),
        ({"precision": "64-true"}, PrivacyRefusal, "precision='64-true'"),
        ({"overfit_batches": 2}, PrivacyRefusal, "overfit_batches=2"),
        ({"strategy": "ddp", "devices": 2}, PrivacyRefusal, "strategy=DDPStrategy on 2 devices"),
        ({"max_steps": 6}, InvalidInput, "max_steps=6: the plan and its noise are for 7 steps"),
        (
            {"max_steps": -1, "max_epochs": 3},
            InvalidInput,
            "max_steps=-1: the plan and its noise are for 7 steps",
        ),
        ({"max_epochs": 2}, InvalidInput, "max_epochs=2: the plan's steps are 3 passes"),
        ({"min_steps": 3}, InvalidInput, "min_steps=3"),
        ({"limit_train_batches": 2}, InvalidInput, "limit_train_batches=2"),
        ({"fast_dev_run": True}, InvalidInput, "max_steps=1"),
        ({"enable_checkpointing": True}, InvalidInput, "Pass state_folder="),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else "",
)
def test_settings_are_refused_by_name(
    changes: dict[str, Any], kind: type[Exception], why: str, tmp_path: Path
) -> None:
    steps = private(None)
    if changes.get("devices") == 2:  # two processes are not started: what setup reads is enough
        with pytest.raises(kind, match=why):
            steps.setup(trainer(steps, tmp_path, **changes), Texts(steps), "fit")
        return
    with pytest.raises(kind, match=why):
        trainer(steps, tmp_path, **changes).fit(Texts(steps), steps.tickets())
    assert steps.session.steps_done == 0


def test_the_key_lies_in_no_folder_of_lightning(tmp_path: Path) -> None:
    saves = lightning.callbacks.ModelCheckpoint(tmp_path)
    steps = private(tmp_path)
    with pytest.raises(PrivacyRefusal, match=r"inside ModelCheckpoint's dirpath .* secret key of the noise"):
        trainer(steps, tmp_path, saves, enable_checkpointing=True).fit(Texts(steps), steps.tickets())
    logger = lightning.loggers.CSVLogger(tmp_path, name="", version="states")
    with pytest.raises(PrivacyRefusal, match=r"is inside CSVLogger's log_dir"):
        trainer(steps, tmp_path, logger=logger).fit(Texts(steps), steps.tickets())

    class Saved(Texts):
        def __init__(self, private: PrivateSteps, rate: float = 0.1) -> None:
            super().__init__(private)
            self.save_hyperparameters()

    with pytest.raises(PrivacyRefusal, match="key of a run's noise cannot be copied or pickled"):
        Saved(steps)


def test_a_ledger_ends_the_run(tmp_path: Path) -> None:
    class Spends(lightning.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 2:
                spend(ledger)

    with closing(ledger_of_texts(tmp_path / "budget.db")) as ledger:
        charges = StepCharges(ledger, "texts", PLAN, chunk=4)
        session = new_session(PLAN, {"input_ids": TOKENS}, charges=charges, generator=None)
        steps = private(None, session)
        ended = trainer(steps, tmp_path, Spends())
        ended.fit(Texts(steps), steps.tickets())
        assert ended.global_step == session.steps_done == 4  # in the second pass of three
        assert session.stopped is not None


def test_what_belongs_to_another_run_is_refused(tmp_path: Path) -> None:
    steps, other = private(tmp_path), private(tmp_path)
    module = Texts(steps)
    module.model = gpt2()
    with pytest.raises(InvalidInput, match="Texts does not contain the session's model"):
        trainer(steps, tmp_path).fit(module, steps.tickets())
    with pytest.raises(InvalidInput, match="another optimizer"):
        PrivateSteps(steps.session, schedule=other.schedule)
    one_of_two: Any = SimpleNamespace(ranks=SimpleNamespace(ranks=2))
    with pytest.raises(PrivacyRefusal, match="session with 2 ranks"):
        PrivateSteps(one_of_two)
    steps.session.save(tmp_path / "states" / "step-0.session")
    with pytest.raises(InvalidInput, match=r"states of another run \(steps 0\).*pass ckpt_path="):
        trainer(steps, tmp_path).fit(Texts(steps), steps.tickets())
    apart = private(None)
    for ticket in apart.session.batches():
        apart.session.step(ticket)
        break
    with pytest.raises(InvalidInput, match="the Trainer is at step 0 and the session at 1"):
        trainer(apart, tmp_path).fit(Texts(apart), apart.tickets())
