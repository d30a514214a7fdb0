"""People with several rows in the loops of transformers' Trainer and Lightning: the bare loop's bits."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import looped
import pytest
import torch
from made import a_plan, finish, weights
from torch import Tensor

from tacit import Plan, PrivateSession
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.integrations.transformers import PrivateTrainer, training_arguments
from tacit.ledger import Ledger, Policy, RenyiBudget
from tacit.losses import causal
from tacit.plan import LossReport
from tacit.sampling import ByDate
from tacit.testing import seeded_generator
from tacit.training import DatedRecords, StepCharges, UserRecords

M, STEPS = 30, 6
TOKENS = looped.texts(M)
OWNERS = [f"p{(row * row + 1) % 13}" for row in range(M)]
PAIRS = [[f"p{row % 11}", f"p{(3 * row + 1) % 11}"] for row in range(M)]


def rows() -> list[dict[str, Any]]:
    return looped.rows(TOKENS)


class Items(torch.utils.data.Dataset[dict[str, Any]]):
    """The same, one by one, with a column that the model does not take."""

    def __len__(self) -> int:
        return M

    def __getitem__(self, position: int) -> dict[str, Any]:
        return {**rows()[position], "writer": OWNERS[position]}


plan = partial(
    a_plan, records=12, batch_size=4, steps=STEPS, clipping=1.0, unit="writer", loss_report=LossReport()
)
WAYS: dict[str, tuple[Plan, Any]] = {
    "people": (plan(), OWNERS),
    "rows": (plan(records=20, batch_size=8, rows_per_user=2), OWNERS),
    "rows of several": (
        plan(
            records=len(UserRecords(rows(), PAIRS, rows_per_user=2).capped()),
            batch_size=3,
            rows_per_user=2,
            adjacency="zero-out",
        ),
        PAIRS,
    ),
}


def new_session(the_plan: Plan, owners: Any) -> PrivateSession:
    return looped.new_session(the_plan, UserRecords(rows(), owners, rows_per_user=2))


def by_hand(the_plan: Plan, owners: Any) -> Tensor:
    return weights(finish(new_session(the_plan, owners)))


def trainer(folder: Path, the_plan: Plan, owners: Any, **changes: Any) -> PrivateTrainer:
    args = training_arguments(
        the_plan, str(folder / "out"), learning_rate=looped.RATE, lr_scheduler_type="constant",
        optim="adamw_torch", save_steps=2, logging_steps=2, use_cpu=True, disable_tqdm=True, report_to=[],
    )  # fmt: skip
    given: dict[str, Any] = {
        "train_dataset": UserRecords(changes.pop("rows", rows()), owners, rows_per_user=2),
        "state_folder": folder / "states", "generator": seeded_generator(5),
    }  # fmt: skip
    return PrivateTrainer(looped.gpt2(), args, the_plan, loss=causal(), **(given | changes))


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("way", WAYS)
def test_a_trainer_of_people_is_the_bare_loop_and_can_be_resumed(way: str, tmp_path: Path) -> None:
    the_plan, owners = WAYS[way]
    made = trainer(tmp_path, the_plan, owners, eval_dataset=rows()[:4])
    made.train()
    expected = by_hand(the_plan, owners)
    assert torch.equal(weights(made.model), expected)
    assert made.session.of_people
    made.evaluate()
    resumed = trainer(tmp_path, the_plan, owners)
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / f"checkpoint-{STEPS - 2}"))
    assert torch.equal(weights(resumed.model), expected)


def test_a_trainer_reads_items_and_collates_them_one_by_one(tmp_path: Path) -> None:
    made = trainer(tmp_path, *WAYS["people"], rows=Items())
    made.train()
    assert torch.equal(weights(made.model), by_hand(*WAYS["people"]))


def test_a_trainer_does_not_evaluate_on_the_rows_of_its_people(tmp_path: Path) -> None:
    data = rows()
    with pytest.raises(PrivacyRefusal, match="eval_dataset must not be train_dataset"):
        trainer(tmp_path, *WAYS["people"], rows=data, eval_dataset={"seen": data})
    with pytest.raises(PrivacyRefusal, match="eval_dataset must not be train_dataset"):
        trainer(tmp_path, *WAYS["people"], rows=data).evaluate(eval_dataset=data)


@pytest.mark.parametrize(
    ("the_plan", "owners", "words"),
    [
        (plan(unit="row"), OWNERS, "unit 'row' does not fit UserRecords"),
        (plan(), OWNERS[:-1], "30 rows and 29 owners"),
        (plan(rows_per_user=3), OWNERS, "Give both the same number"),
        (plan(), PAIRS, "cannot be sampled by person"),
    ],
)
def test_a_trainer_refuses_what_does_not_fit(the_plan: Plan, owners: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises((InvalidInput, PrivacyRefusal), match=words):
        trainer(tmp_path, the_plan, owners)


def test_a_plan_by_rows_needs_owners_in_a_trainer(tmp_path: Path) -> None:
    with pytest.raises(PrivacyRefusal, match="the data name no owners"):
        trainer(tmp_path, plan(rows_per_user=2), OWNERS, train_dataset=rows())


def test_a_trainer_charges_people_to_the_ledger(tmp_path: Path) -> None:
    ledger = Ledger.create("sqlite://")
    policy = Policy(
        unit="writer", unit_column="name", adjacency="add-remove",
        budget=RenyiBudget(epsilon=99.0, delta=1e-3),
    )  # fmt: skip
    ledger.open_dataset("letters", policy)
    charges = StepCharges(ledger, "letters", plan(), owned_by="name")
    trainer(tmp_path, *WAYS["people"], charges=charges, generator=None).train()
    assert ledger.status("letters").charges["SETTLED"] > 0
    charges = StepCharges(ledger, "letters", plan(), owned_by="name")
    with pytest.raises(PrivacyRefusal, match="the session counts rows"):
        trainer(tmp_path, plan(), OWNERS, train_dataset=rows(), charges=charges, generator=None)


def test_a_trainer_takes_a_whole_stream_and_no_part_of_one(tmp_path: Path) -> None:
    stream = plan(sampling=ByDate(), unit="letter")
    days = [f"2026-01-{1 + row % STEPS:02d}" for row in range(M)]

    def until(day: str) -> DatedRecords:
        return DatedRecords(rows(), days, first="2026-01-01", until=day)

    made = trainer(tmp_path, stream, OWNERS, train_dataset=until("2026-01-07"))
    made.train()
    assert torch.equal(weights(made.model), weights(finish(looped.new_session(stream, until("2026-01-07")))))
    with pytest.raises(InvalidInput, match="days for only 3 of the plan's 6 steps"):
        trainer(tmp_path / "part", stream, OWNERS, train_dataset=until("2026-01-04")).train()


# --- Lightning -------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")  # Lightning's own use of torch
@pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization")
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* is not empty")
@pytest.mark.parametrize("way", WAYS)
def test_lightning_of_people_is_the_bare_loop_and_can_be_resumed(way: str, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    from tacit.integrations.lightning import PrivateSteps

    class Texts(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, private: PrivateSteps) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.private, self.model = private, private.session.model

        def configure_optimizers(self) -> Any:
            return self.private.optimizer

        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.log("loss", self.private.step(batch).loss, batch_size=1)

    the_plan, owners = WAYS[way]

    def fit(**settings: Any) -> Tensor:
        private = PrivateSteps(new_session(the_plan, owners), state_folder=tmp_path / "states")
        saves = lightning.callbacks.ModelCheckpoint(
            tmp_path / "out", every_n_train_steps=2, save_top_k=-1, filename="{step}"
        )
        lightning.Trainer(
            max_steps=STEPS, accelerator="cpu", devices=1, logger=False, default_root_dir=tmp_path,
            enable_progress_bar=False, enable_model_summary=False, callbacks=[private, saves],
        ).fit(Texts(private), private.tickets(), **settings)  # fmt: skip
        return weights(private.session.model)

    expected = by_hand(the_plan, owners)
    assert torch.equal(fit(), expected)
    assert torch.equal(fit(ckpt_path=tmp_path / "out" / "step=4.ckpt", weights_only=False), expected)
