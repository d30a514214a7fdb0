"""All attacks on a finished run: those of ``tacit attack``, and those of the papers.

They are more attacks on membership, the exposure of single records, pictures reconstructed from a classifier,
and what a language model recites.  If network and settings allow it, several shadow models are trained at the
same time (:mod:`experiments.laboratory.shadow_ensembles`).

Letters: K shadow models, n records (members first), c classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from experiments.laboratory.exposed_records import by_chance, ranked_and_reported
from experiments.laboratory.inversion import Inversion, mi_face
from experiments.laboratory.page import grey_picture
from experiments.laboratory.recitation import recitation_found
from experiments.laboratory.shadow_ensembles import at_once
from experiments.laboratory.suite import Evidence, attack_all, attacks_without
from tacit.accounting import account
from tacit.audits import Scores
from tacit.audits.attacks import (
    ATTACK,
    LOSS_ATTACK,
    Bools,
    Shadows,
    ShadowScores,
    bavaria,
    log_probability,
    logit_margin,
    paired_halves,
    train_shadows,
    without_each_group,
)
from tacit.datasets import Dataset, TensorPair
from tacit.datasets.text import END, PADDING, Alphabet
from tacit.report.findings import AttackedModel, default_rates, membership_found
from tacit.report.verification import read_event
from tacit.runs.attack import (
    WITH_DP,
    WITHOUT_DP,
    FinishedRun,
    described,
    identity_of,
    outputs_of,
    scaled_plan,
    secrets_found,
    train_plainly,
    train_privately,
    without_dp,
)
from tacit.runs.kinds import Progress, silent
from tacit.runs.model import task_of
from tacit.training.evaluation import evaluate

Array: TypeAlias = NDArray[np.float64]

_GALLERY = 8
_CLASSES = 10  # of more classes, only the first ten are drawn
_STEPS = 1000


def laboratory_findings(
    run: FinishedRun,
    *,
    shadows: int,
    confidence: float,
    rng: np.random.Generator,
    rates: tuple[float, ...] | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Return the findings of :func:`tacit.runs.attack.attack_findings` with those of all other attacks.

    The arguments are the same.
    """
    resolved = default_rates(len(run.data.test.inputs))
    plain = without_dp(run, progress)
    targets = {WITH_DP: run.model, WITHOUT_DP: plain}
    trained = {name: shadow_models(run, name, shadows, rng, progress) for name in targets} if shadows else {}
    models = []
    for name, model in targets.items():
        scores, without = _scores(run, model, trained.get(name))
        train_score = evaluate(model, *task_of(run.data).evaluated(run.data.train)).score
        test_score = evaluate(model, *task_of(run.data).evaluated(run.data.test)).score
        models.append(AttackedModel(name, name == WITH_DP, scores, train_score, test_score, without))
    curve = account(read_event(run.statement["event"]), adjacency=run.plan.adjacency)
    findings = described(run)
    findings["membership"] = membership_found(
        models,
        curve,
        headline=ATTACK if shadows else LOSS_ATTACK,
        shadows=shadows,
        rates=resolved if rates is None else rates,
        confidence=confidence,
        rng=rng,
    )
    if run.data.classes and is_picture(run.data.train.inputs[0]):
        networks = {"without_dp": plain, "with_dp": run.model}
        tell = partial(progress, "drawing the classes")
        findings["inversion"] = {"classes": drawn_classes(networks, run.data, tell)}
    if run.data.tokens:
        findings["remembered"] = secrets_found(run, targets, curve, rng=rng, progress=progress)
        findings["recitation"] = recitation_found(run, targets, rng=rng, progress=progress)
    if shadows >= 8:
        findings["exposed"] = _exposed(run, trained)
    return findings


def shadow_models(
    run: FinishedRun, name: str, count: int, rng: np.random.Generator, progress: Progress = silent
) -> Shadows:
    """Train K shadow models with or without DP, several at a time if that gives the same result."""
    pool, private = run.pool, name == WITH_DP

    def one_by_one(group: Bools) -> NDArray[Any]:
        outputs = []
        for row in group:
            chosen = np.flatnonzero(row)
            rows = TensorPair(pool.inputs[chosen], pool.targets[chosen])
            model = train_privately(run, rows) if private else train_plainly(run, rows)
            outputs.append(outputs_of(run, model))
        return np.stack(outputs)

    half = scaled_plan(run.plan, len(pool.inputs) // 2)
    ensemble = at_once(run.config, run.data, half, pool, private=private)
    return train_shadows(
        one_by_one if ensemble is None else ensemble.train,
        paired_halves(count, len(pool.inputs), rng),
        at_once=1 if ensemble is None else ensemble.models,
        store=run.store / f"shadows-{name.replace(' ', '-').lower()}-{count}.npz",
        identity=identity_of(run, name),
        progress=partial(progress, f"shadow models {name}"),
    )


def _scores(
    run: FinishedRun, model: nn.Module, shadows: Shadows | None
) -> tuple[dict[str, Scores], dict[str, list[Scores]]]:
    """Score members and non-members by every attack on one model.

    The second result has the scores again, with each group of shadow models left out in turn.  If targets are
    numbers or labels, only attacks that need no classes are used.
    """
    outputs, member = outputs_of(run, model), run.is_member
    without: dict[str, list[Array]] = {}
    if not run.data.classes:
        scores = {LOSS_ATTACK: outputs}
        if shadows is not None:
            scores[ATTACK] = bavaria(ShadowScores(outputs, shadows.outputs, shadows.trained_on))
            without[ATTACK] = [
                bavaria(ShadowScores(outputs, shadows.outputs[selection], shadows.trained_on[selection]))
                for selection in without_each_group(len(shadows.outputs))
            ]
    else:
        labels = run.pool.targets.numpy()
        if shadows is None:
            scores = {LOSS_ATTACK: log_probability(outputs, labels)}
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
        return Alphabet(data.alphabet).decode(target[(target != PADDING) & (target != END)].tolist())
    if data.labels:
        own = [name for name, value in zip(data.labels, target.tolist(), strict=True) if value]
        return ", ".join(own) or "no label"
    return data.classes[int(target)] if data.classes else f"{float(target.reshape(-1)[0]):.3g}"


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
