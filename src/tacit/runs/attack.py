"""Attacks on a finished run: on its model and on the same model without DP, with shadow models of both.

The members are the training records of the run, the non-members its test records.  Shadow models are trained
like the target, by the same code and settings, on random halves of members and non-members together.  Their
batches are smaller in proportion, so that sampling rate and noise multiplier equal the run's.  If network and
settings allow it, several shadow models are trained at the same time (:mod:`tacit.runs.stacking`).

Letters: K shadow models, n records (members first), c classes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from tacit.accounting import account
from tacit.attacks import Scores
from tacit.attacks.inversion import Inversion, mi_face
from tacit.attacks.membership import (
    DEFAULT_ATTACK,
    LOSS_THRESHOLD,
    Evidence,
    ShadowScores,
    attack_all,
    attacks_without,
    bavaria,
    by_chance,
    log_probability,
    logit_margin,
    loss_threshold,
    ranked_and_reported,
    without_each_group,
)
from tacit.attacks.scores import check_enough
from tacit.attacks.shadows import Indices, Shadows, one_by_one, paired_halves, train_shadows
from tacit.datasets import Dataset, TensorPair
from tacit.datasets.text import PADDING, Alphabet
from tacit.errors import InvalidInput, check_integer
from tacit.models.additive import StandardLinear, released
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.report.findings import AttackedModel, default_rates, membership_found, risk_found
from tacit.report.pages.canvas import grey_picture
from tacit.report.risk import risk_sheet
from tacit.report.statement.reading import read_event
from tacit.runs.build import session_on
from tacit.runs.canaries import with_canaries
from tacit.runs.config import read_text
from tacit.runs.finished import FinishedRun, weights_in
from tacit.runs.kinds import Progress, silent
from tacit.runs.model import begin_step, new_model, new_optimizer, training_loss
from tacit.runs.remembering import memory_found, texts
from tacit.runs.sections import AuditSection
from tacit.runs.stacking import at_once
from tacit.runs.tasks import losses_of, task_of
from tacit.sampling import FullBatch, ShuffledBatches
from tacit.training.data.records import as_records
from tacit.training.evaluation import evaluate, evaluation_mode

Array: TypeAlias = NDArray[np.float64]

WITH_DP, WITHOUT_DP = "with DP", "without DP"
_ROWS = 1024  # records in one forward pass
_GALLERY = 8


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
    resolved = default_rates(len(run.data.test.inputs))
    for rate in rates or ():
        check_enough(rate, len(run.data.test.inputs))
    plain = without_dp(run, progress)
    targets = {WITH_DP: run.model, WITHOUT_DP: plain}
    trained = {name: _shadows(run, name, shadows, rng, progress) for name in targets} if shadows else {}
    models: list[AttackedModel] = []
    for name, model in targets.items():
        progress("attacks", len(models), len(targets))
        scores, without = _scores(run, model, trained.get(name))
        models.append(
            AttackedModel(
                name,
                name == WITH_DP,
                scores,
                evaluate(model, *task_of(run.data).evaluated(run.data.train)).score,
                evaluate(model, *task_of(run.data).evaluated(run.data.test)).score,
                without,
            )
        )
    progress("attacks", len(targets), len(targets))
    curve = account(read_event(run.statement["event"]), adjacency=run.plan.adjacency)
    findings: dict[str, Any] = {
        "run": {
            "name": run.folder.name,
            "unit": run.plan.unit,
            "data": run.data.source,
            "model": _described(run),
            "private": run.statement["private"],
        },
        "risk": risk_found(risk_sheet(curve, delta=run.plan.delta, unit=run.plan.unit)),
        "membership": membership_found(
            models,
            curve,
            headline=DEFAULT_ATTACK if shadows else LOSS_THRESHOLD,
            shadows=shadows,
            rates=resolved if rates is None else rates,
            confidence=confidence,
            rng=rng,
        ),
    }
    if run.data.classes and is_picture(run.data.train.inputs[0]):
        networks = {"without_dp": plain, "with_dp": run.model}
        tell = partial(progress, "drawing the classes")
        findings["inversion"] = {"classes": drawn_classes(networks, run.data, tell)}
    if run.data.tokens:
        findings["remembered"] = memory_found(
            targets, run.data, run.canaries, run.config.canaries, curve,
            private=WITH_DP, rng=rng, progress=progress,
        )  # fmt: skip
    return findings | ({"exposed": _exposed(run, trained)} if shadows >= 8 else {})


def without_dp(run: FinishedRun, progress: Progress = silent) -> nn.Module:
    """Train the same model on the same records and canaries without clipping and noise."""
    tell = partial(progress, "training without DP")
    return _train_plainly(run, with_canaries(run.data, run.canaries).train, tell)


def _scores(
    run: FinishedRun, model: nn.Module, shadows: Shadows | None
) -> tuple[dict[str, Scores], dict[str, list[Scores]]]:
    """Score members and non-members by every attack on one model.

    The second result has the scores again, with each group of shadow models left out in turn.  If targets are
    numbers or labels, only attacks that need no classes are used.
    """
    outputs, member = _outputs(run, model), run.is_member
    without: dict[str, list[Array]] = {}
    if not run.data.classes:
        scores = {LOSS_THRESHOLD: outputs}
        if shadows is not None:
            scores[DEFAULT_ATTACK] = bavaria(ShadowScores(outputs, shadows.outputs, shadows.trained_on))
            without[DEFAULT_ATTACK] = [
                bavaria(ShadowScores(outputs, shadows.outputs[selection], shadows.trained_on[selection]))
                for selection in without_each_group(len(shadows.outputs))
            ]
    else:
        labels = run.pool.targets.numpy()
        if shadows is None:
            scores = {LOSS_THRESHOLD: loss_threshold(-log_probability(outputs, labels))}
        else:
            evidence = Evidence(outputs, shadows.outputs, shadows.trained_on, labels)
            scores, without = attack_all(evidence), attacks_without(evidence)
    return (
        {name: Scores.of(values, member) for name, values in scores.items()},
        {
            name: [Scores.of(values_without, member) for values_without in values]
            for name, values in without.items()
        },
    )


def _outputs(run: FinishedRun, model: nn.Module) -> NDArray[Any]:
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


# --- shadow models ----------------------------------------------------------------------------------------


def _shadows(
    run: FinishedRun, name: str, count: int, rng: np.random.Generator, progress: Progress
) -> Shadows:
    """Train K shadow models with or without DP, and reuse those that an interrupted attack has saved."""
    if count < 4 or count % 2:
        raise InvalidInput(
            f"--shadows must be 0, or an even number from 4; got {count}. Take 16 for most runs."
        )
    pool = run.pool

    def train(indices: Indices) -> Callable[[], ArrayLike]:
        rows = TensorPair(pool.inputs[indices], pool.targets[indices])
        model = _train_privately(run, rows) if name == WITH_DP else _train_plainly(run, rows, silent)
        return lambda: _outputs(run, model)

    half = _scaled(run.plan, len(pool.inputs) // 2)
    together = at_once(run.config, run.data, half, pool, private=name == WITH_DP)
    return train_shadows(
        one_by_one(train) if together is None else together.train,
        paired_halves(count, len(pool.inputs), rng),
        at_once=1 if together is None else together.models,
        store=run.store / f"shadows-{name.replace(' ', '-').lower()}-{count}.npz",
        identity=_identity(run, name),
        progress=partial(progress, f"shadow models {name}"),
    )


def _identity(run: FinishedRun, name: str) -> str:
    digest = hashlib.sha256(read_text(run.folder / "config.toml").encode())
    digest.update(weights_in(run.folder).read_bytes())
    for part in as_records(run.pool).content() or ():  # the test records have no digest in the run
        digest.update(part)
    return f"{name}: {digest.hexdigest()}"


def _train_privately(run: FinishedRun, rows: TensorPair) -> nn.Module:
    config = run.config.model_copy(update={"audit": AuditSection()})  # plants no slots
    session = session_on(config, replace(run.data, train=rows), _scaled(run.plan, len(rows.inputs)))
    for batch in session.batches():
        begin_step(config, session.model, session.optimizer, session.steps_done, run.plan.steps)
        session.step(batch)
    return released(session.current_model)


def _scaled(plan: Plan, records: int) -> Plan:
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


def _train_plainly(
    run: FinishedRun,
    rows: TensorPair,
    tell: Callable[[int, int], None],
) -> nn.Module:
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


# --- who is exposed ---------------------------------------------------------------------------------------


def _exposed(run: FinishedRun, trained: Mapping[str, Shadows]) -> dict[str, Any]:
    """Return the members' exposure with and without DP, and the most and least exposed ones without DP."""
    orders, values, chance = {}, {}, {}
    for name, shadows in trained.items():
        margins = (
            logit_margin(shadows.outputs, run.pool.targets.numpy()) if run.data.classes else shadows.outputs
        )
        order, values[name] = ranked_and_reported(margins, shadows.trained_on)
        chance[name] = by_chance(margins, shadows.trained_on)
        orders[name] = order[run.is_member[order]]
    curves = []
    for name, order in orders.items():
        smooth = [float(values[name][part].mean()) for part in np.array_split(order, min(len(order), 50))]
        percent = ((np.arange(len(smooth)) + 0.5) / len(smooth) * 100).tolist()
        curves.append({"model": name, "private": name == WITH_DP, "percent": percent, "values": smooth})

    def card(record: int) -> dict[str, Any]:
        x, y = run.data.train.inputs[record], run.data.train.targets[record]
        return {
            "record": record,
            "label": _label(run.data, y),
            "picture": grey_picture(x.numpy()) if is_picture(x) else None,
            "without_dp": float(values[WITHOUT_DP][record]),
            "with_dp": float(values[WITH_DP][record]),
            "chance_without_dp": float(chance[WITHOUT_DP][record]),
            "chance_with_dp": float(chance[WITH_DP][record]),
        }

    order = orders[WITHOUT_DP]
    return {
        "curves": curves,
        "most": [card(int(record)) for record in order[:_GALLERY]],
        "least": [card(int(record)) for record in order[-_GALLERY:]],
    }


def _label(data: Dataset, target: Tensor) -> str:
    """Return a caption for a record: its class, its labels, its text, or the number that is its target."""
    if data.spelling is not None:
        return data.spelling.decode(target[target != PADDING].tolist())
    if data.alphabet:
        return texts(target[None], Alphabet(data.alphabet))[0]
    if data.labels:
        own = [name for name, value in zip(data.labels, target.tolist(), strict=True) if value]
        return ", ".join(own) or "no label"
    return data.classes[int(target)] if data.classes else f"{float(target.reshape(-1)[0]):.3g}"


def _described(run: FinishedRun) -> str:
    section = run.config.model
    parameters = sum(p.numel() for p in run.model.parameters())
    return f"{section.name or section.factory or 'language model'}, {parameters:,} parameters"


_CLASSES = 10  # of more classes, only the first ten are drawn
_STEPS = 1000


def is_picture(record: Tensor) -> bool:
    """Return whether a record (channels, h, w) can be shown as a picture."""
    return record.ndim == 3 and record.shape[0] in (1, 3)


def drawn_classes(
    models: Mapping[str, nn.Module],
    data: Dataset,
    progress: Callable[[int, int], None] = silent,
) -> list[dict[str, Any]]:
    """Reconstruct a picture of each class from each model, by model inversion.

    The attack starts from the mean of the test pictures.  It therefore assumes an attacker who knows what
    such pictures look like, but knows no training picture.

    Returns:
        A dict for each class with its "name", the "mean" of its training pictures and, under each model's
        name, the picture reconstructed from that model.  Pictures are data URLs.
    """
    count = min(_CLASSES, len(data.classes))
    test_inputs, (inputs, labels) = data.test.inputs, data.train
    start = test_inputs.mean(dim=0, keepdim=True).expand(count, *test_inputs.shape[1:]).contiguous()
    settings = Inversion(steps=_STEPS, low=float(test_inputs.min()), high=float(test_inputs.max()))
    entries: list[dict[str, Any]] = [{"name": name} for name in data.classes[:count]]
    for number, entry in enumerate(entries):
        own = inputs[labels == number]
        entry["mean"] = grey_picture((own if len(own) else start[:1]).mean(dim=0).numpy())
    for done, (name, model) in enumerate(models.items(), 1):
        device = next(model.parameters()).device
        pictures = mi_face(model, torch.arange(count, device=device), start.to(device), settings=settings)
        for number, entry in enumerate(entries):
            entry[name] = grey_picture(pictures.pictures[number].cpu().numpy())
        progress(done, len(models))
    return entries
