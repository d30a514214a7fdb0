"""A finished run: its folder's files, its data loaded again, and its audit."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.attacks.memorisation import Canary
from tacit.audits import AuditResult, audit_slots, plan_with_room
from tacit.audits.result import AUDIT_LEVEL
from tacit.audits.slots import SlotAudit
from tacit.datasets import Dataset, TensorPair
from tacit.errors import InvalidInput, PrivacyRefusal, TacitError
from tacit.events import Adjacency
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.report.findings import FEWEST_TESTS, Planted, audits_found
from tacit.report.verification import check_fields, read_event, read_statement
from tacit.runs.build import owned_by
from tacit.runs.canaries import read_canaries, with_canaries
from tacit.runs.checks import canary_file, resume_state, slot_files
from tacit.runs.config import Config, read_config
from tacit.runs.kinds import Progress, prepared_data, silent
from tacit.runs.model import device_of, new_model
from tacit.runs.plan import make_plan
from tacit.runs.saved_model import load_weights, read_description, tuned_model
from tacit.training import AuditSlots, PrivateSession
from tacit.training.data.records import as_records
from tacit.training.parts.audit_slots import SlotEvidence
from tacit.training.resume.state import is_trained_on


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A finished run: its data, the performed plan, its statement, and its model."""

    folder: Path
    config: Config
    data: Dataset
    plan: Plan
    statement: dict[str, Any]
    model: nn.Module
    canaries: tuple[Canary, ...] = ()

    @property
    def store(self) -> Path:
        """The folder for files of attacks, which must not be released."""
        return self.folder / "private" / "attack"

    @property
    def pool(self) -> TensorPair:
        """The training records (members), followed by the test records (non-members), (n, ...)."""
        train, test = self.data.train, self.data.test
        return TensorPair(torch.cat([train.inputs, test.inputs]), torch.cat([train.targets, test.targets]))

    @property
    def is_member(self) -> NDArray[np.bool_]:
        """Whether the run was trained on each record of the pool, (n,)."""
        train, test = len(self.data.train.inputs), len(self.data.test.inputs)
        return np.arange(train + test) < train


def finished_files(folder: Path) -> tuple[Config, Plan, dict[str, Any]]:
    """Return the configuration, the performed plan and the statement of a finished run.

    Raises:
        InvalidInput: the folder holds no finished run, or its files do not fit together.
    """
    weights = weights_in(folder)
    if not folder.is_dir():
        raise InvalidInput(f"there is no run at {folder}. Name a folder that tacit train wrote.")
    if not weights.exists():
        raise InvalidInput(
            f"{folder} holds no finished run: {weights.name} is missing. Finish it by "
            "tacit train with --resume."
        )
    statement = read_statement(folder / "statement.json")
    check_fields(statement)
    config = read_config(folder / "config.toml")
    plan = _performed(make_plan(config), statement["mechanism"]["steps"])
    if read_event(statement["event"]) != plan.event:
        raise InvalidInput(
            f"{folder / 'statement.json'} does not belong to {folder / 'config.toml'}: their mechanisms "
            "differ. Was a file copied from another run?"
        )
    return config, plan, statement


def open_run(folder: Path, progress: Progress = silent) -> FinishedRun:
    """Read the files of a run, and load its data again.

    Raises:
        InvalidInput: the folder holds no finished run, its files do not fit together, its model cannot be
            loaded, its records are people with several rows, or it is a run by date.
        PrivacyRefusal: the data are not those of the run.
    """
    config, plan, statement = finished_files(folder)
    if config.data.rows_per_user is not None:
        raise InvalidInput(
            f"attacks test single rows, and this run protects people ({owned_by(config)!r}): the guarantee "
            "is for a person with all rows, so its limits do not apply to single rows. Use tacit audit, "
            "which plants made-up people: it needs no rows."
        )
    if config.data.date is not None:
        raise InvalidInput(
            f"attacks do not support runs by date ({config.data.date!r}): they train further models on "
            "random halves of the records. Attack a run of the same model on samples of the records."
        )
    canaries = read_canaries(canary_file(folder), config)
    data = prepared_data(config, progress, private=folder / "private")
    if not is_trained_on(resume_state(folder), as_records(with_canaries(data, canaries).train)):
        raise PrivacyRefusal(
            f"the data that {folder / 'config.toml'} names are not the training records of this run: their "
            "digest differs from that in private/resume.pt. An attack would then take strangers for members "
            "and find too little. Restore the data as they were. A run on batches of `tacit batches` cannot "
            "be attacked, because its digest is of the batches."
        )
    data = replace(data, train=_usable(data.train), test=_usable(data.test))
    model = _trained(config, data, folder)
    return FinishedRun(folder, config, data, plan, statement, model, canaries)


def _usable(pair: TensorPair) -> TensorPair:
    """Convert float16 inputs, in which large tables are stored, to float32."""
    narrow = pair.inputs.dtype == torch.float16
    return TensorPair(pair.inputs.float() if narrow else pair.inputs, pair.targets)


def weights_in(folder: Path) -> Path:
    """Return the file of the trained weights in a run's folder: the adapter's if there is one."""
    adapter = folder / "adapter_model.safetensors"
    return adapter if adapter.exists() else folder / "model.safetensors"


def _trained(config: Config, data: Dataset, folder: Path) -> nn.Module:
    if config.pretrained:
        path = weights_in(folder)
        whole = tuned_model(path, read_description(path)).to(device_of(config.run.device))
        return whole.head if config.model.tune == "head" else whole
    if config.model.huggingface is not None:
        from tacit.runs.language_model import LanguageResult  # imports transformers

        return LanguageResult(config).trained(folder).to(device_of(config.run.device))
    model = new_model(config, data, Generator.from_os())
    load_weights(model, weights_in(folder))
    return model


def _performed(plan: Plan, steps: int) -> Plan:
    """Return the plan for the steps that were performed, since a ledger may have ended the run early."""
    return replace(plan, steps=steps) if 1 <= steps < plan.steps else plan


PLANTED = 0.8 * AUDIT_LEVEL
"""The largest probability that an experiment with canaries rejects a true claim, over both stages."""
_USUAL = 1000  # slots of a planted experiment
_MORE = (8, 4, 2, 1)  # factors for the canaries of the second stage; the largest that is fast enough is used
_WIDTH = 8  # numbers in a made-up record
_MOST_WORK = 2e8  # limit of records times steps of a rehearsal, which takes about a minute


@dataclass(frozen=True, eq=False)
class FolderAudit:
    """The result of an audit by the run's own slots, or by a ``rehearsal`` of its plan.

    **Guarantee**

    * A true claim is rejected with probability at most :data:`PLANTED`, over all results together.
    """

    audit: SlotAudit
    slots: int
    rehearsal: bool
    again: str = ""
    """A description of the second stage's tests, if the first stage suspected a violation."""


def audit_folder(
    folder: Path | str,
    *,
    confidence: float = 0.95,
    slots: int = _USUAL,
    rng: np.random.Generator | None = None,
    progress: Callable[[str, int, int], None] = silent,
) -> FolderAudit:
    """Audit the run in ``folder`` by its own slots, or else by a rehearsal of its plan on made-up records.

    Args:
        confidence: the confidence of each bound.
        slots: the number of slots of a rehearsal.
        rng: draws halves of the slots, ties and simulations; it must be independent of the slots' coins.
        progress: called during long work, with (title, done, total).

    Raises:
        InvalidInput: there is no run, a run with slots is not finished, or a rehearsal would take too long.
        PrivacyRefusal: the plan cannot be audited by slots (:meth:`tacit.training.AuditSlots.check_plan`).
    """
    folder = Path(folder)
    config = read_config(folder / "config.toml")
    plan = make_plan(config)
    rng = np.random.default_rng() if rng is None else rng
    if config.audit.slots:
        evidence, rehearsal = SlotEvidence.load(*slot_files(folder)), False
        slots = config.audit.slots
    else:
        if plan.adjacency is Adjacency.ADD_REMOVE:  # the rehearsal refuses any other adjacency
            plan = plan_with_room(plan, slots)
        tell = partial(progress, "planted experiment")
        evidence, rehearsal = rehearse_plan(plan, slots, progress=tell), True
    progress("what it proves", 0, 1)
    audit, again = audit_slots(evidence, plan, confidence=confidence, rng=rng), ""
    if suspects(audit):
        tell = partial(progress, "a second, larger experiment")
        audit, again = _second_stage(audit, evidence, plan, slots, rehearsal, tell, rng)
    progress("what it proves", 1, 1)
    return FolderAudit(audit, slots, rehearsal, again)


def how_to_test(config: Config, plan: Plan, folder: Path, test_records: int) -> str:
    """Return the command that tests a finished run, or the reason why none does."""
    run = shlex.quote(str(folder))
    if config.data.date is not None:
        return "No command tests a run by date: attacks train on random halves of the records."
    refusal = ""
    try:
        AuditSlots(1).check_plan(plan)
        if not config.audit.slots and _work(plan_with_room(plan, _USUAL)) > _MOST_WORK:
            refusal = "a planted experiment would take too long without [audit] slots."
    except TacitError as problem:
        refusal = str(problem)
    of_rows = config.data.rows_per_user is None and test_records >= FEWEST_TESTS
    if of_rows:
        return f"To test it:\n  tacit {'attack' if refusal else 'audit'} {run}"
    if config.data.rows_per_user is None:
        return f"No command tests it: an attack needs at least {FEWEST_TESTS} test records."
    if refusal:
        return f"No command tests it: attacks test single rows, and {refusal}"
    return f"To test it, with made-up people, since attacks test single rows:\n  tacit audit {run}"


def suspects(audit: SlotAudit) -> bool:
    """Return whether one of the audit's results rejects the claim."""
    return any(result.claim_rejected for result in results_of(audit))


def results_of(audit: SlotAudit) -> tuple[AuditResult, AuditResult, AuditResult]:
    """Return the audit's three results, each of which tests the claim."""
    return audit.claim, audit.one_run, audit.one_run_by_tradeoff


def confirms(evidence: SlotEvidence, plan: Plan, *, level: float, rng: np.random.Generator) -> bool:
    """Return whether one of three tests rejects the claim; ``level`` is their total error probability."""
    return suspects(audit_slots(evidence, plan, confidence=1.0 - level / 3.0, rng=rng))


def judged(audit: SlotAudit, *, confirmed: bool) -> SlotAudit:
    """Return the audit, in which a suspicion of the first stage rejects the claim only if ``confirmed``."""
    claim, one_run, by_tradeoff = (
        replace(one, suspected=one.claim_rejected, claim_rejected=bool(one.claim_rejected and confirmed))
        for one in results_of(audit)
    )
    return replace(audit, claim=claim, one_run=one_run, one_run_by_tradeoff=by_tradeoff)


def _second_stage(
    audit: SlotAudit,
    evidence: SlotEvidence,
    plan: Plan,
    slots: int,
    rehearsal: bool,
    progress: Callable[[int, int], None],
    rng: np.random.Generator,
) -> tuple[SlotAudit, str]:
    """Test again with fresh canaries, at a significance level that holds whatever the first stage found.

    A run's own slots cannot be planted again, so they are tested at a smaller level.  If it does not take too
    long, the plan is also rehearsed with fresh canaries, since a bug in the code would show there, too.

    Returns:
        The judged audit, and a description of the tests.
    """
    more = next(
        (times * slots for times in _MORE if _work(plan_with_room(plan, times * slots)) <= _MOST_WORK), 0
    )
    looks = (not rehearsal) + (more > 0)  # a rehearsal has more > 0, as its first stage was fast enough
    confirmed, tests = False, []
    if not rehearsal:
        confirmed = confirms(evidence, plan, level=PLANTED / looks, rng=rng)
        tests.append("its own slots, at a smaller error probability")
    if more and not confirmed:
        roomy = plan_with_room(plan, more)
        fresh = rehearse_plan(roomy, more, progress=progress)
        confirmed = confirms(fresh, roomy, level=PLANTED / looks, rng=rng)
        tests.append(f"{more:,} fresh canaries in a separate run of the same plan")
    return judged(audit, confirmed=confirmed), " and ".join(tests)


def _work(plan: Plan) -> float:
    """Return the expected number of records in all steps together, as a measure of computing time."""
    return plan.steps * plan.expected_batch_size


def rehearse_plan(
    plan: Plan,
    slots: int,
    *,
    generator: Generator | None = None,
    progress: Callable[[int, int], None] = silent,
) -> SlotEvidence:
    """Perform ``plan`` on ``plan.records`` made-up records, with audit slots among them.

    Args:
        plan: a plan with room for the slots (:func:`tacit.audits.plan_with_room`).
        slots: the number of slots.
        generator: only for tests.
        progress: called with (steps done, all steps).

    Raises:
        InvalidInput: the rehearsal would take too long.
    """
    plan = replace(plan, views=1)
    if _work(plan) > _MOST_WORK:
        raise InvalidInput(
            f"a rehearsal of the plan takes too long: it has {plan.steps} steps of "
            f"{plan.expected_batch_size:g} records. Train with [audit] slots = 1000 in the configuration "
            "instead; the run then stores what its audit needs."
        )
    with torch.random.fork_rng(devices=[]):
        records = torch.randn(plan.records, _WIDTH)
        net = nn.Linear(_WIDTH, 2)
    targets = (records.sum(1) > 0).long()
    session = PrivateSession(
        net,
        torch.optim.SGD(net.parameters(), lr=0.1),
        (records, targets),
        plan,
        loss=_loss,
        physical_batch_size=max(1, math.ceil(plan.expected_batch_size / 2)),  # exercises accumulation, too
        audit=AuditSlots(slots),
        generator=generator,
    )
    for batch in session.batches():
        session.step(batch)
        progress(session.steps_done, plan.steps)
    return session.slot_evidence()


def _loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs), targets, reduction="none")


def audit_findings(
    folder: Path,
    *,
    canaries: int,
    confidence: float,
    rng: np.random.Generator,
    progress: Progress = silent,
) -> list[dict[str, Any]]:
    """Audit the run by canaries: its own, or those of a separate run of its plan.

    Args:
        canaries: the number of canaries to plant in a separate run, if this run has none.
        confidence: the confidence of each bound.
        rng: draws halves of the slots, ties and simulations; it must be independent of the slots' coins.

    Raises:
        PrivacyRefusal: the plan cannot be audited by slots.
        InvalidInput: the run's evidence is damaged, or a separate run would take too long.
    """
    audit = audit_folder(folder, confidence=confidence, slots=canaries, rng=rng, progress=progress)
    where = _where(audit, make_plan(read_config(folder / "config.toml")).steps)
    if audit.again:
        where += f" One test suspected a violation, so all tests were repeated on {audit.again}."
    return audits_found([Planted(where, results_of(audit.audit))])


def _where(audit: FolderAudit, steps: int) -> str:
    if not audit.rehearsal:
        return (
            f"{audit.slots:,} canaries were planted in this run; a secret coin included about half of them."
        )
    return (
        f"{audit.slots:,} canaries, about half of them included by a secret coin, were planted in a "
        "separate run of the same plan on made-up records: the same code, sampler, clipping and noise, "
        f"{steps} steps. To plant them in a run itself, set [audit] slots = 1000 in its "
        "configuration."
    )
