"""A finished run, its audit by slots, the attack on its model, and its planted secrets.

Letters: K shadow models, n records (members first), c classes; t tokens per context, L tokens per training
record, V tokens in the vocabulary.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from tacit.accounting import PrivacyCurve, account
from tacit.audits import AuditResult, Scores, audit_slots, plan_with_room
from tacit.audits.attacks import (
    ATTACK,
    LOSS_ATTACK,
    Array,
    Bools,
    Canary,
    NextToken,
    SecretSpace,
    Shadows,
    ShadowScores,
    bavaria,
    exact_exposure,
    greedy,
    log_likelihoods,
    log_probability,
    logit_margin,
    paired_halves,
    sampled_exposure,
    train_shadows,
    without_each_group,
)
from tacit.audits.claim import AUDIT_LEVEL
from tacit.audits.one_run import SlotAudit
from tacit.audits.scores import check_enough
from tacit.datasets import Dataset, TensorPair
from tacit.datasets.dataset import Spelling
from tacit.datasets.text import END, Alphabet
from tacit.errors import InvalidInput, PrivacyRefusal, check_integer
from tacit.events import Adjacency
from tacit.losses import logits_of
from tacit.models import WindowModel
from tacit.models.additive import StandardLinear, released
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.report.findings import (
    MEMORY,
    AttackedModel,
    MemorisingModel,
    Planted,
    SecretFound,
    audits_found,
    default_rates,
    membership_found,
    memorisation_found,
    risk_found,
)
from tacit.report.risk import risk_sheet
from tacit.report.verification import check_fields, read_event, read_statement
from tacit.runs.build import MOST_WORK, USUAL_SLOTS, owned_by, session_on, work_of
from tacit.runs.canaries import TAG, read_canaries, secret_space, with_canaries
from tacit.runs.checks import canary_file, resume_state, slot_files
from tacit.runs.config import Config, read_config, read_text
from tacit.runs.kinds import Progress, prepared_data, silent
from tacit.runs.learners import MODEL, learner_of, new_model
from tacit.runs.model import (
    begin_step,
    losses_of,
    new_optimizer,
    task_of,
    training_loss,
)
from tacit.runs.plan import make_plan
from tacit.runs.sections import AuditSection
from tacit.sampling import FullBatch, ShuffledBatches
from tacit.training import AuditSlots, PrivateSession
from tacit.training.audit_slots import SlotEvidence
from tacit.training.evaluation import evaluation_mode
from tacit.training.records import as_records
from tacit.training.resume import is_trained_on


@dataclass(frozen=True, eq=False)
class FinishedRun:
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
    weights = weights_in(folder)
    if not folder.is_dir():
        raise InvalidInput(f"there is no run at {folder}. Give a folder that tacit train wrote.")
    if not weights.exists():
        raise InvalidInput(
            f"the run in {folder} is not finished: {weights.name} is missing. Finish it with tacit train "
            "--resume."
        )
    statement = read_statement(folder / "statement.json")
    check_fields(statement)
    config = read_config(folder / "config.toml")
    plan, steps = make_plan(config), statement["mechanism"]["steps"]
    if 1 <= steps < plan.steps:  # the ledger ended the run early
        plan = replace(plan, steps=steps)
    if read_event(statement["event"]) != plan.event:
        raise InvalidInput(
            f"{folder / 'statement.json'} does not belong to {folder / 'config.toml'}: they describe "
            "different mechanisms. Restore both from one run."
        )
    return config, plan, statement


def open_run(folder: Path, progress: Progress = silent) -> FinishedRun:
    config, plan, statement = finished_files(folder)
    if config.data.rows_per_user is not None:
        raise InvalidInput(
            f"attacks test single rows, but this run protects whole people ({owned_by(config)!r}), so its "
            "limits are for people. Use tacit audit, which adds synthetic people."
        )
    if config.data.chosen is not None:
        raise InvalidInput(
            "attacks do not support preferences, whose DPO loss compares two models. Use tacit audit, which "
            "needs no records."
        )
    if config.data.date is not None:
        raise InvalidInput(
            f"attacks do not support runs by date ({config.data.date!r}), because they train models on "
            "random halves of the records. Attack a run with Poisson sampling."
        )
    canaries = read_canaries(canary_file(folder), config)
    data = prepared_data(config, progress, private=folder / "private")
    if not is_trained_on(resume_state(folder), as_records(with_canaries(data, canaries).train)):
        raise PrivacyRefusal(
            f"the data named in {folder / 'config.toml'} are not this run's training records, by their "
            "digest in private/resume.pt. The attack would judge the wrong records. Restore the original "
            "data. A run on `tacit batches` cannot be attacked."
        )
    data = replace(data, train=_usable(data.train), test=_usable(data.test))
    model = learner_of(config, data).trained(folder)
    return FinishedRun(folder, config, data, plan, statement, model, canaries)


def _usable(pair: TensorPair) -> TensorPair:
    """Convert float16 inputs, in which large tables are stored, to float32."""
    narrow = pair.inputs.dtype == torch.float16
    return TensorPair(pair.inputs.float() if narrow else pair.inputs, pair.targets)


def weights_in(folder: Path) -> Path:
    """Return the file of the trained weights in a run's folder: the adapter's if there is one."""
    adapter = folder / "adapter_model.safetensors"
    return adapter if adapter.exists() else folder / MODEL


PLANTED = 0.8 * AUDIT_LEVEL
"""The largest probability that an experiment with canaries rejects a true claim, over both stages."""
_MORE = (8, 4, 2, 1)  # factors for the canaries of the second stage; the largest that is fast enough is used
_WIDTH = 8  # numbers in a synthetic record


@dataclass(frozen=True, eq=False)
class FolderAudit:
    """The result of an audit by the run's own slots, or by a ``rehearsal`` of its plan.

    ``again`` describes the second stage's tests, if the first stage suspected a violation.

    **Guarantee**

    * A true claim is rejected with probability at most :data:`PLANTED`, over all results together.
    """

    audit: SlotAudit
    slots: int
    rehearsal: bool
    again: str = ""


def audit_folder(
    folder: Path | str,
    *,
    confidence: float = 0.95,
    slots: int = USUAL_SLOTS,
    rng: np.random.Generator | None = None,
    progress: Callable[[str, int, int], None] = silent,
) -> FolderAudit:
    """Audit the run in ``folder`` by its own slots, or else by a rehearsal of its plan on synthetic records.

    ``rng`` must be independent of the slots' coins.
    """
    folder = Path(folder)
    config = read_config(folder / "config.toml")
    plan = make_plan(config)
    rng = np.random.default_rng() if rng is None else rng
    rehearsal = not config.audit.slots
    if not rehearsal:
        evidence = SlotEvidence.load(*slot_files(folder))
        slots = config.audit.slots
    else:
        if plan.adjacency is Adjacency.ADD_REMOVE:  # the rehearsal refuses any other adjacency
            plan = plan_with_room(plan, slots)
        evidence = rehearse_plan(plan, slots, progress=partial(progress, "planted experiment"))

    progress("lower bounds on epsilon", 0, 1)
    audit, again = audit_slots(evidence, plan, confidence=confidence, rng=rng), ""
    if suspects(audit):
        tell = partial(progress, "a second, larger experiment")
        audit, again = _second_stage(audit, evidence, plan, slots, rehearsal, tell, rng)
    progress("lower bounds on epsilon", 1, 1)
    return FolderAudit(audit, slots, rehearsal, again)


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
    Returns the judged audit, and a description of the tests.
    """
    more = next(
        (times * slots for times in _MORE if work_of(plan_with_room(plan, times * slots)) <= MOST_WORK), 0
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


def results_of(audit: SlotAudit) -> tuple[AuditResult, AuditResult, AuditResult]:
    return audit.claim, audit.one_run, audit.one_run_by_tradeoff


def suspects(audit: SlotAudit) -> bool:
    return any(result.claim_rejected for result in results_of(audit))


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


def rehearse_plan(
    plan: Plan,
    slots: int,
    *,
    generator: Generator | None = None,
    progress: Callable[[int, int], None] = silent,
) -> SlotEvidence:
    """Perform ``plan`` on ``plan.records`` synthetic records, with audit slots among them.

    The plan needs room for the slots (:func:`tacit.audits.plan_with_room`).  ``generator`` is only for tests.
    """
    plan = replace(plan, views=1)
    if work_of(plan) > MOST_WORK:
        raise InvalidInput(
            f"the audit would repeat the plan on synthetic records, which takes too long ({plan.steps} steps "
            f"of {plan.expected_batch_size:g} records). Train with [audit] slots = 1000 in the run file "
            "instead: it stores what the audit needs."
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
        loss=lambda model, x, y: F.cross_entropy(model(x), y, reduction="none"),
        physical_batch_size=max(1, math.ceil(plan.expected_batch_size / 2)),  # exercises accumulation, too
        audit=AuditSlots(slots),
        generator=generator,
    )
    for step in session.batches():
        session.step(step)
        progress(session.steps_done, plan.steps)
    return session.slot_evidence()


WITH_DP, WITHOUT_DP = "with DP", "without DP"
_ROWS = 1024  # records in one forward pass


def run_findings(
    folder: Path,
    *,
    shadows: int,
    canaries: int,
    confidence: float,
    rng: np.random.Generator,
    rates: tuple[float, ...] | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Attack the run in ``folder``, audit it unless ``canaries`` is 0, and return the findings as plain data.

    If its records are people with several rows, or preferences, attacks on rows do not apply, and it is only
    audited.
    """
    config, plan, statement = finished_files(folder)
    of_rows = config.data.rows_per_user is None and config.data.chosen is None
    opened = None if canaries and not of_rows else open_run(folder, progress)
    audits: dict[str, Any] = {}
    if canaries:
        audit = audit_folder(folder, confidence=confidence, slots=canaries, rng=rng, progress=progress)
        half = "a secret coin included about half of them"
        where = f"{audit.slots:,} canaries were planted in this run; {half}."
        if audit.rehearsal:
            where = (
                f"{audit.slots:,} canaries were planted in a separate run of the same plan on synthetic "
                f"records; {half}. It has the same code, sampler, clipping and noise, and "
                f"{make_plan(config).steps} steps. To plant them in a run itself, set [audit] slots = 1000 "
                "in its configuration."
            )
        if audit.again:
            where += f" The verdict is that of the second stage, on {audit.again}."
        audits["audits"] = audits_found([Planted(where, results_of(audit.audit))])
    if opened is not None:
        found = attack_findings(
            opened, shadows=shadows, confidence=confidence, rng=rng, rates=rates, progress=progress
        )
    else:
        found = proven_findings(folder, plan, statement, data=statement["data"], model=statement["model"])
    return found | audits


def proven_findings(
    folder: Path, plan: Plan, statement: Mapping[str, Any], *, data: str, model: str
) -> dict[str, Any]:
    curve = account(read_event(statement["event"]), adjacency=plan.adjacency)
    return {
        "run": {
            "name": folder.name,
            "unit": plan.unit,
            "data": data,
            "model": model,
            "private": statement["private"],
        },
        "risk": risk_found(risk_sheet(curve, delta=plan.delta, unit=plan.unit)),
    }


def attack_findings(
    run: FinishedRun,
    *,
    shadows: int,
    confidence: float,
    rng: np.random.Generator,
    rates: tuple[float, ...] | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Attack the run's model and one without DP, and compare the results with the proven bounds.

    The members are the training records of the run, the non-members its test records.
    """
    check_integer("shadows", shadows, low=0)
    if shadows == 2 or shadows % 2:
        raise InvalidInput(
            f"--shadows must be 0, or an even number of at least 4; got {shadows}. Set 16 for most runs."
        )
    tests = len(run.data.test.inputs)
    resolved = default_rates(tests)
    for rate in rates or ():
        check_enough(rate, tests)

    targets = {WITH_DP: run.model, WITHOUT_DP: without_dp(run, progress)}
    models = []
    for name, model in targets.items():
        trained = _shadow_models(run, name, shadows, rng, progress) if shadows else None
        scores, without = _scores(run, outputs_of(run, model), trained)
        task = task_of(run.data)
        train_score = task.evaluate(model, run.data.train).score
        test_score = task.evaluate(model, run.data.test).score
        models.append(AttackedModel(name, name == WITH_DP, scores, train_score, test_score, without))

    curve = account(read_event(run.statement["event"]), adjacency=run.plan.adjacency)
    membership = membership_found(
        models,
        curve,
        headline=ATTACK if shadows else LOSS_ATTACK,
        shadows=shadows,
        rates=resolved if rates is None else rates,
        confidence=confidence,
        rng=rng,
    )
    findings = described(run) | {"membership": membership}
    if run.data.tokens:
        findings["remembered"] = secrets_found(run, targets, curve, rng=rng, progress=progress)
    return findings


def described(run: FinishedRun) -> dict[str, Any]:
    section = run.config.model
    parameters = sum(p.numel() for p in run.model.parameters())
    model = f"{section.name or section.factory or 'language model'}, {parameters:,} parameters"
    return proven_findings(run.folder, run.plan, run.statement, data=run.data.source, model=model)


def _scores(
    run: FinishedRun, outputs: NDArray[Any], shadows: Shadows | None
) -> tuple[dict[str, Scores], dict[str, list[Scores]]]:

    def named(values: Array) -> Scores:
        return Scores.of(values, run.is_member)

    labels = run.pool.targets.numpy() if run.data.classes else None
    losses = outputs if labels is None else log_probability(outputs, labels)
    scores = {LOSS_ATTACK: named(losses)}
    if shadows is None:
        return scores, {}

    own, others, trained_on = outputs, shadows.outputs, shadows.trained_on
    if labels is not None:
        own, others = logit_margin(own, labels), logit_margin(others, labels)
    scores[ATTACK] = named(bavaria(ShadowScores(own, others, trained_on)))
    without = [
        named(bavaria(ShadowScores(own, others[kept], trained_on[kept])))
        for kept in without_each_group(len(others))
    ]
    return scores, {ATTACK: without}


def outputs_of(run: FinishedRun, model: nn.Module) -> NDArray[Any]:
    """Return a model's outputs on members and non-members: logits (n, c) for classes, else -loss (n,)."""
    device, parts = next(model.parameters()).device, []
    with evaluation_mode(model), torch.no_grad():
        pool = run.pool
        for start in range(0, len(pool.inputs), _ROWS):
            x, y = (part[start : start + _ROWS] for part in pool)
            if run.data.classes:
                parts.append(model(x.to(device)).float().cpu())
            else:
                parts.append(-losses_of(run.data)(model, x.to(device), y.to(device)).float().cpu())
    outputs: NDArray[Any] = torch.cat(parts).numpy()
    return outputs


# --- models trained again ---------------------------------------------------------------------------------


def without_dp(run: FinishedRun, progress: Progress = silent) -> nn.Module:
    tell = partial(progress, "training without DP")
    return train_plainly(run, with_canaries(run.data, run.canaries).train, tell)


def _shadow_models(
    run: FinishedRun, name: str, count: int, rng: np.random.Generator, progress: Progress
) -> Shadows:
    """Train K shadow models with or without DP, and reuse those that an interrupted attack has saved.

    They are trained like the target, by the same code and settings, on random halves of members and
    non-members together.  Their batches are smaller in proportion, so that sampling rate and noise multiplier
    equal the run's.
    """
    pool = run.pool

    def train(group: Bools) -> NDArray[Any]:
        chosen = np.flatnonzero(group[0])
        rows = TensorPair(pool.inputs[chosen], pool.targets[chosen])
        model = train_privately(run, rows) if name == WITH_DP else train_plainly(run, rows)
        return outputs_of(run, model)[None]

    return train_shadows(
        train,
        paired_halves(count, len(pool.inputs), rng),
        store=run.store / f"shadows-{name.replace(' ', '-').lower()}-{count}.npz",
        identity=identity_of(run, name),
        progress=partial(progress, f"shadow models {name}"),
    )


def identity_of(run: FinishedRun, name: str) -> str:
    digest = hashlib.sha256(read_text(run.folder / "config.toml").encode())
    digest.update(weights_in(run.folder).read_bytes())
    for part in as_records(run.pool).content() or ():  # the test records have no digest in the run
        digest.update(part)
    return f"{name}: {digest.hexdigest()}"


def train_privately(run: FinishedRun, rows: TensorPair) -> nn.Module:
    """Train the run's model on other records, by its plan."""
    config = run.config.model_copy(update={"audit": AuditSection()})  # plants no slots
    session = session_on(config, replace(run.data, train=rows), scaled_plan(run.plan, len(rows.inputs)))
    for step in session.batches():
        begin_step(config, session.model, session.optimizer, session.steps_done, run.plan.steps)
        session.step(step)
    return released(session.current_model)


def scaled_plan(plan: Plan, records: int) -> Plan:
    """Return the plan for fewer records, with the same sampling rate, steps and noise multiplier."""
    batch = max(1.0, plan.sampling_rate * records)
    sampling = plan.sampling
    if isinstance(sampling, ShuffledBatches):
        batch = float(max(1, round(batch)))
        sampling = ShuffledBatches(int(batch), records)
    return replace(
        plan,
        records=records,
        sampling=sampling,
        expected_batch_size=batch,
        epsilon_budget=None,
        allow_large_delta=True,
    )


def train_plainly(run: FinishedRun, rows: TensorPair, tell: Callable[[int, int], None] = silent) -> nn.Module:
    """Train without DP, in shuffled batches, with the run's sampling rate and number of steps."""
    model = new_model(run.config, run.data, Generator.from_os())
    optimizer = new_optimizer(run.config, model)
    if isinstance(model, StandardLinear):
        model.for_plan(run.plan)
    losses = training_loss(run.config, model, run.data)
    batch = len(rows.inputs)
    if not isinstance(run.plan.sampling, FullBatch):
        batch = max(1, round(run.plan.sampling_rate * len(rows.inputs)))
    device = next(model.parameters()).device
    order = torch.empty(0, dtype=torch.int64)
    for step in range(run.plan.steps):
        if not len(order):  # the last batch of an epoch may be smaller
            order = torch.from_numpy(np.random.default_rng().permutation(len(rows.inputs)))
        turn, order = order[:batch], order[batch:]
        begin_step(run.config, model, optimizer, step, run.plan.steps)
        optimizer.zero_grad()
        losses(model, *(part[turn].to(device) for part in rows)).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        tell(step + 1, run.plan.steps)
    return model


# --- planted secrets --------------------------------------------------------------------------------------

_MOST_RANKED = 10**6  # if there are more candidates, only a sample of them is ranked
_SAMPLE = 20_000
_MOST_NUMBERS = 1 << 26  # outputs of a language model in memory at once


def secrets_found(
    run: FinishedRun,
    models: Mapping[str, nn.Module],
    curve: PrivacyCurve,
    *,
    rng: np.random.Generator,
    progress: Progress = silent,
) -> dict[str, Any]:
    section = run.config.canaries
    space = secret_space(section)
    alphabet = spelling_of(run.data)
    seed = int(rng.integers(2**62))
    results = []
    for name, model in models.items():
        ask = asking(model, run.data)
        same = np.random.default_rng(seed)  # same draws for all models
        secrets = []
        for done, canary in enumerate(run.canaries, 1):
            exposure, _, _ = ranked_secret(ask, canary, space, alphabet, same)
            prefix = alphabet.encode(canary.prefix)
            completion = alphabet.decode(greedy(ask, prefix, space.length).tolist())
            secrets.append(SecretFound(canary, exposure, completion))
            progress(f"secrets {name}", done, len(run.canaries))
        results.append(MemorisingModel(name, name == WITH_DP, secrets))
    return memorisation_found(
        results,
        curve,
        prefix=section.prefix.replace(TAG, "…"),
        candidates=space.size,
        confidence=1.0 - MEMORY,
    )


def spelling_of(data: Dataset) -> Spelling:
    return Alphabet(data.alphabet) if data.spelling is None else data.spelling


def ranked_secret(
    ask: NextToken, canary: Canary, space: SecretSpace, alphabet: Spelling, rng: np.random.Generator
) -> tuple[float, float, Array]:
    """Rank a canary's secret among all candidates, or among a sample if there are more than a million.

    Returns the exposure in bits, and the log-likelihoods of the secret and of the others.  ``rng`` draws the
    sample; it must be independent of the secret.
    """
    prefix, secret = alphabet.encode(canary.prefix), alphabet.encode(canary.secret)
    letters = np.array(alphabet.encode(space.alphabet))
    if space.size > _MOST_RANKED:
        candidates = letters[space.digits(rng.integers(space.size, size=_SAMPLE))]
        scores = log_likelihoods(ask, prefix, np.vstack([candidates, secret]))
        own, others = float(scores[-1]), scores[:-1]
        return sampled_exposure(own, others), own, others

    place = space.position(canary.secret)
    scores = log_likelihoods(ask, prefix, letters[space.digits(np.arange(space.size))])
    return exact_exposure(scores, place), float(scores[place]), np.delete(scores, place)


def asking(model: nn.Module, data: Dataset) -> NextToken:
    length = data.input_shape[0]
    if data.vocabulary:
        return next_of_tokens(model, length, data.vocabulary)
    return next_token(model, length - 1)


def next_of_tokens(model: nn.Module, length: int, vocabulary: int) -> NextToken:
    """Convert a language model of transformers, which reads only the last ``length`` tokens of a context."""

    @torch.no_grad()
    def logits(contexts: NDArray[np.int64]) -> NDArray[np.floating]:
        device = next(model.parameters()).device
        # A copy, as torch warns of arrays that are for reading only.
        window = torch.from_numpy(np.array(contexts[:, -length:]))
        rows = max(1, _MOST_NUMBERS // (max(1, window.shape[1]) * vocabulary))
        with evaluation_mode(model):
            parts = [logits_of(model(part.to(device)))[:, -1] for part in torch.split(window, rows)]
        answer: NDArray[np.floating] = torch.cat(parts).float().cpu().numpy()
        return answer

    return logits


def next_token(model: nn.Module, longest: int) -> NextToken:
    """Convert a model of characters; ``longest`` is L - 1, and only the last tokens of a context are read."""

    @torch.no_grad()
    def logits(contexts: NDArray[np.int64]) -> NDArray[np.floating]:
        device = next(model.parameters()).device
        if isinstance(model, WindowModel):  # one window suffices for the next token
            start = np.full((len(contexts), model.context), END, dtype=np.int64)
            last = np.concatenate([start, contexts], axis=1)[:, -model.context :]
            outputs = model.after(torch.from_numpy(np.ascontiguousarray(last)).to(device))
        else:
            window = contexts[:, max(0, contexts.shape[1] - longest) :]
            tokens = np.full((len(contexts), longest + 1), END, dtype=np.int64)
            tokens[:, 1 : window.shape[1] + 1] = window
            with evaluation_mode(model):
                outputs = model(torch.from_numpy(tokens).to(device))[:, window.shape[1]]
        answer: NDArray[np.floating] = outputs.float().cpu().numpy()
        return answer

    return logits
