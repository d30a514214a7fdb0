"""The attack on a finished run, on its model and on the same model without DP, and its planted secrets.

Letters: K shadow models, n records (members first), c classes; t tokens per context, L tokens per training
record, V tokens in the vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.accounting import PrivacyCurve, account
from tacit.audits import Scores
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
from tacit.audits.scores import check_enough
from tacit.datasets import Dataset, TensorPair
from tacit.datasets.dataset import Spelling
from tacit.datasets.text import END, Alphabet
from tacit.errors import InvalidInput, check_integer
from tacit.losses import logits_of
from tacit.models import WindowModel
from tacit.models.additive import StandardLinear, released
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.report.findings import (
    MEMORY,
    AttackedModel,
    MemorisingModel,
    SecretFound,
    default_rates,
    membership_found,
    memorisation_found,
    risk_found,
)
from tacit.report.risk import risk_sheet
from tacit.report.verification import read_event
from tacit.runs.audit import audit_findings
from tacit.runs.build import session_on
from tacit.runs.canaries import TAG, secret_space, with_canaries
from tacit.runs.config import read_text
from tacit.runs.finished import FinishedRun, finished_files, open_run, weights_in
from tacit.runs.kinds import Progress, silent
from tacit.runs.model import begin_step, new_model, new_optimizer, training_loss
from tacit.runs.sections import AuditSection
from tacit.runs.tasks import losses_of, task_of
from tacit.sampling import FullBatch, ShuffledBatches
from tacit.training.evaluation import evaluate, evaluation_mode
from tacit.training.records import as_records

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

    If its records are people with several rows, attacks on rows do not apply, and it is only audited.
    """
    config, plan, statement = finished_files(folder)
    of_people = config.data.rows_per_user is not None and canaries > 0
    opened = None if of_people else open_run(folder, progress)
    audits: dict[str, Any] = {}
    if canaries:
        audits["audits"] = audit_findings(
            folder, canaries=canaries, confidence=confidence, rng=rng, progress=progress
        )
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
    """Return a description of the run, and its proven limits."""
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

    Args:
        run: the finished run.
        shadows: K, the even number of shadow models for each of the two models; with 0, the only attack is
            the loss threshold.
        confidence: the confidence of the intervals.
        rng: draws random halves of the records, for the shadow models and for the evaluation.
        rates: the false-positive rates to report; by default those that the test records suffice to estimate.
        progress: called with (title, done, total).

    Raises:
        InvalidInput: there are too few test records, ``shadows`` is neither 0 nor an even number from 4, or
            a shadow model has outputs that are not finite.
    """
    check_integer("shadows", shadows, low=0)
    if shadows == 2 or shadows % 2:
        raise InvalidInput(
            f"--shadows must be 0, or an even number from 4; got {shadows}. Take 16 for most runs."
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
        train_score = evaluate(model, *task_of(run.data).evaluated(run.data.train)).score
        test_score = evaluate(model, *task_of(run.data).evaluated(run.data.test)).score
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
    """Return a description of the run, and its proven limits."""
    section = run.config.model
    parameters = sum(p.numel() for p in run.model.parameters())
    model = f"{section.name or section.factory or 'language model'}, {parameters:,} parameters"
    return proven_findings(run.folder, run.plan, run.statement, data=run.data.source, model=model)


def _scores(
    run: FinishedRun, outputs: NDArray[Any], shadows: Shadows | None
) -> tuple[dict[str, Scores], dict[str, list[Scores]]]:
    """Score members and non-members, and once more without each group of shadow models."""

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
    """Train the same model on the same records and canaries without clipping and noise."""
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
    """Return a digest of all that the outputs of shadow models depend on."""
    digest = hashlib.sha256(read_text(run.folder / "config.toml").encode())
    digest.update(weights_in(run.folder).read_bytes())
    for part in as_records(run.pool).content() or ():  # the test records have no digest in the run
        digest.update(part)
    return f"{name}: {digest.hexdigest()}"


def train_privately(run: FinishedRun, rows: TensorPair) -> nn.Module:
    """Train the run's model on other records, by its plan."""
    config = run.config.model_copy(update={"audit": AuditSection()})  # plants no slots
    session = session_on(config, replace(run.data, train=rows), scaled_plan(run.plan, len(rows.inputs)))
    for batch in session.batches():
        begin_step(config, session.model, session.optimizer, session.steps_done, run.plan.steps)
        session.step(batch)
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
    turns = _turns(len(rows.inputs), batch)
    device = next(model.parameters()).device
    for step in range(run.plan.steps):
        turn = next(turns)
        begin_step(run.config, model, optimizer, step, run.plan.steps)
        optimizer.zero_grad()
        losses(model, *(part[turn].to(device) for part in rows)).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        tell(step + 1, run.plan.steps)
    return model


def _turns(count: int, batch: int) -> Iterator[Tensor]:
    """Yield the indices of shuffled batches, epoch after epoch; an epoch's last batch may be smaller."""
    while True:
        order = torch.from_numpy(np.random.default_rng().permutation(count))
        yield from (order[start : start + batch] for start in range(0, count, batch))


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
    """Rank the run's planted secrets by each model, and return the results as plain data."""
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
    """Return the encoder of made-up text in the vocabulary of the data."""
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
    """Convert the model of a run on text to a function that returns next-token logits."""
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
