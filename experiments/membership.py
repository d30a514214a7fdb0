"""All membership attacks on an overfitted network, and on the same network under DP.

Of 2,000 records, 10 % are mislabelled.  Each record is in the training set of a target with probability one
half.  Shadow models are trained like the target, with its privacy settings.  The bound is 1 - f, with the
trade-off curve f of the accounted run: no attack can exceed it.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor
from torch.nn.functional import avg_pool2d

from experiments.attacked import CONFIDENCE, FALSE_ALARMS, attacked, pooled, roc_with_band
from experiments.base import DELTA, NO_SEARCH, Request, Row, write_results
from experiments.laboratory.ensembles import MLPEnsemble, train_plainly, train_privately
from experiments.laboratory.exposed_records import ranked_and_reported
from experiments.laboratory.suite import Evidence, attack_all
from experiments.standard import load
from tacit.audits import Claim, claim_test
from tacit.audits.attacks import ATTACK, Shadows, logit_margin, paired_halves, train_shadows
from tacit.datasets import Dataset
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.report.canvas import BLUE, GREEN, GREY, MARKERS, ORANGE, PALE, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

Array: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]

_NAME = "membership"
_RECORDS, _MISLABELLED, _TESTED = 2000, 200, 5000
_SIDE, _HIDDEN, _CLASSES = 14, 64, 10
_MEAN_PIXEL = 0.13  # a typical value for handwritten digits
_SHADOWS = 16
_AT_ONCE = 10
_PLAIN = {"learning_rate": 0.1, "momentum": 0.9, "batch_size": 50, "epochs": 60}
_PRIVATE = {"learning_rate": 0.2, "momentum": 0.0}
_BATCH, _EPOCHS, _CLIPPING = 50, 20, 1.0
_PICTURES = 12
_NOTES = (
    "2,000 training pictures in 14x14, 200 of them mislabelled, each in a target's training set with "
    "probability one half; MLP 196-64-10; 16 shadow models, in pairs of complements, trained as the targets",
    "figures are of all targets pooled; intervals are for other records of these models and take records as "
    "independent, the AUC of each target is in the JSON",
    "mislabelled: share of the mislabelled members found before the first false alarm among the mislabelled",
    "the bound on what can be found at 1 % false alarms is 1 - f(0.01) of the accounted run; 'contradicted' "
    "says whether an attack's errors refute it at 95 % for all attacks together",
)


@dataclass(frozen=True)
class _Pool:
    """Records 0 to 1,999 may be members, the next 2,000 never are, and the rest measure accuracy.

    ``inputs`` are (n, 196), ``labels`` (n,) those of training, and ``true_labels`` (n,).
    """

    inputs: Tensor
    labels: Tensor
    true_labels: Ints

    @property
    def mislabelled(self) -> Bools:
        """Whether each of the first 2,000 records has a wrong label, (2000,)."""
        wrong: Bools = self.labels.cpu().numpy() != self.true_labels
        return wrong[:_RECORDS]


@dataclass(frozen=True)
class _Outcome:
    """The results for one plan: ``scores`` by attack, one (n,) array per target, and ``member`` (targets, n).

    ``order`` (n,) has the records from the most exposed on.  ``exposure`` (n,) has v_i from other shadows.
    """

    plan: Plan | None
    member: Bools
    scores: dict[str, list[Array]]
    order: Ints
    exposure: Array
    row: Row


def run(request: Request) -> list[Row]:
    """Return a row without privacy and one per epsilon; draw ``membership.png``. ``seeds`` targets each."""
    name = request.choose_dataset(("mnist", "fashion-mnist"))
    pool = _pool(load(name), request.device)
    outcomes = [_outcome(name, pool, None, request)]
    plans = [_plan(epsilon) for epsilon in request.choose_epsilons((8.0,))]
    outcomes += [_outcome(name, pool, plan, request) for plan in plans]
    rows = [outcome.row for outcome in outcomes]
    write_results(_NAME, rows, request, notes=_NOTES)
    _draw(outcomes, pool, request)
    for outcome in outcomes:
        request.folder.joinpath(_store(outcome.plan)).unlink()
    return rows


def _pool(data: Dataset, device: str) -> _Pool:
    """Return the pool, with the same records and wrong labels in every run; only training differs."""
    rng = np.random.default_rng(1610_05820)
    order = rng.permutation(len(data.train.inputs))[: 2 * _RECORDS]
    inputs = torch.cat([data.train.inputs[order], data.test.inputs[:_TESTED]])
    true = torch.cat([data.train.targets[order], data.test.targets[:_TESTED]]).numpy()
    labels = true.copy()
    for start in (0, _RECORDS):  # the same number of wrong labels among members and non-members
        wrong = start + rng.permutation(_RECORDS)[:_MISLABELLED]
        labels[wrong] = (labels[wrong] + rng.integers(1, _CLASSES, _MISLABELLED)) % _CLASSES
    small = avg_pool2d(inputs, inputs.shape[-1] // _SIDE).flatten(1) - _MEAN_PIXEL
    return _Pool(small.to(device), torch.from_numpy(labels).to(device), true)


def _plan(epsilon: float) -> Plan:
    return Plan.calibrate(
        epsilon=epsilon,
        delta=DELTA,
        records=_RECORDS // 2,
        batch_size=_BATCH,
        epochs=_EPOCHS,
        clipping=_CLIPPING,
        adjacency="add-remove",
        unit="image",
    )


def _store(plan: Plan | None) -> str:
    """Return the name of the file from which an interrupted run restores its models."""
    return f"{_NAME}-shadows-{'plain' if plan is None else format(plan.noise_multiplier, '.6f')}.npz"


def _outcome(name: str, pool: _Pool, plan: Plan | None, request: Request) -> _Outcome:
    start = time.perf_counter()
    title = "without DP" if plan is None else f"ε = {plan.epsilon:.3g}"
    models = _trained(pool, plan, request, title)
    targets = request.seeds
    member, labels = models.trained_on[:targets], pool.labels.cpu().numpy()
    request.listener(f"attacks, {title}", 0, targets)
    scores: dict[str, list[Array]] = {}
    for target in range(targets):
        for attack, values in attack_all(_evidence(models, target, targets, labels)).items():
            scores.setdefault(attack, []).append(values)
        request.listener(f"attacks, {title}", target + 1, targets)
    margins = logit_margin(models.outputs[targets:, :_RECORDS], labels[:_RECORDS])
    order, exposure = ranked_and_reported(margins, models.trained_on[targets:])
    right = models.outputs[:targets].argmax(axis=2) == labels
    tested = right[:, 2 * _RECORDS :].mean(axis=1)
    row = Row(
        experiment=_NAME,
        dataset=name,
        model=f"MLP {_SIDE * _SIDE}-{_HIDDEN}-{_CLASSES}, {title}",
        epsilon=math.inf if plan is None else plan.epsilon,
        delta=0.0 if plan is None else plan.delta,
        accountant="none" if plan is None else "pld",
        noise_multiplier=None if plan is None else plan.noise_multiplier,
        accuracy_mean=float(tested.mean()),
        accuracy_std=float(tested.std(ddof=1)) if targets > 1 else None,
        seeds=targets,
        wall_seconds=time.perf_counter() - start,
        selection=NO_SEARCH,
        details={
            "train_accuracy": float(right[:, :_RECORDS][member].mean()),
            "shadows": _SHADOWS,
            "bound_found": None if plan is None else _most_found(plan, FALSE_ALARMS),
            "attacks": _figures(scores, member, pool.mislabelled, plan),
            "most_exposed": float(exposure[order[:50]].mean()),
            "least_exposed": float(exposure[order[-50:]].mean()),
        },
    )
    return _Outcome(plan, member, scores, order, exposure, row)


def _trained(pool: _Pool, plan: Plan | None, request: Request, title: str) -> Shadows:
    """Train the targets, with independent coin flips, and then the shadows; logits are (K, n, 10)."""
    rng = np.random.default_rng()
    coins = rng.random((request.seeds, _RECORDS)) < 0.5
    return train_shadows(
        partial(_train, pool, plan),
        np.concatenate([coins, paired_halves(_SHADOWS, _RECORDS, rng)]),
        at_once=_AT_ONCE,
        store=request.folder / _store(plan),
        identity=_identity(pool, plan, request.seeds),
        progress=partial(request.listener, f"models, {title}"),
    )


def _train(pool: _Pool, plan: Plan | None, trained_on: Bools) -> NDArray[np.float32]:
    generators = [Generator.from_os() for _ in trained_on]
    models = MLPEnsemble((_SIDE * _SIDE, _HIDDEN, _CLASSES), "tanh", generators, device=pool.inputs.device)
    x, y = pool.inputs[:_RECORDS], pool.labels[:_RECORDS]
    if plan is None:
        train_plainly(
            models, x, y, trained_on, generators=generators,
            learning_rate=_PLAIN["learning_rate"], momentum=_PLAIN["momentum"],
            batch_size=int(_PLAIN["batch_size"]), epochs=int(_PLAIN["epochs"]),
        )  # fmt: skip
    else:
        train_privately(
            models,
            x,
            y,
            trained_on,
            plan,
            generators=generators,
            learning_rate=_PRIVATE["learning_rate"],
            momentum=_PRIVATE["momentum"],
        )
    return models.logits(pool.inputs)


def _identity(pool: _Pool, plan: Plan | None, targets: int) -> str:
    data = hashlib.sha256(
        pool.inputs.cpu().numpy().tobytes() + pool.labels.cpu().numpy().tobytes()
    ).hexdigest()
    return json.dumps([data, targets, _SHADOWS, _HIDDEN, repr(plan), _PLAIN if plan is None else _PRIVATE])


def _evidence(models: Shadows, target: int, targets: int, labels: Ints) -> Evidence:
    inside, outside = slice(0, _RECORDS), slice(_RECORDS, 2 * _RECORDS)
    return Evidence(
        models.outputs[target, inside],
        models.outputs[targets:, inside],
        models.trained_on[targets:],
        labels[inside],
        models.outputs[target, outside],
        models.outputs[targets:, outside],
        labels[outside],
    )


def _figures(
    scores: dict[str, list[Array]], member: Bools, mislabelled: Bools, plan: Plan | None
) -> list[dict[str, Any]]:
    rng = np.random.default_rng()
    claim = None if plan is None else Claim(plan.curve, delta=plan.delta)
    each = 1.0 - (1.0 - CONFIDENCE) / len(scores)
    found = []
    for name, own in scores.items():
        wrong = pooled([values[mislabelled] for values in own], member[:, mislabelled])
        more: dict[str, Any] = {"mislabelled": float((wrong.members > wrong.non_members.max()).mean())}
        if claim is not None:
            test = claim_test(pooled(own, member), claim, confidence=each, rng=rng)
            more |= {"eps_lower": test.eps_lower, "contradicted": test.claim_rejected}
        found.append(attacked(name, own, member, rng).to_json(more))
    return found


def _most_found(plan: Plan, false_alarms: float) -> float:
    """Return 1 - f, the largest share of members that any attack finds."""
    return 1.0 - float(plan.curve.false_negative_rate(false_alarms))


# --- the figure -------------------------------------------------------------------------------------------


def _draw(outcomes: list[_Outcome], pool: _Pool, request: Request) -> None:
    figure = new_figure(11.0, 7.6)
    upper, lower = np.asarray(figure.subfigures(2, 1, height_ratios=(2.4, 1)))
    left, right = np.asarray(upper.subplots(1, 2))
    _draw_roc(left, outcomes)
    _draw_exposure(right, outcomes)
    _draw_gallery(lower, outcomes[0], pool)
    save_figure(figure, request.folder / f"{_NAME}.png")


def _draw_roc(axes: Axes, outcomes: list[_Outcome]) -> None:
    rates = np.geomspace(5.0 / outcomes[0].member.size * 2.0, 1.0, 60)
    strictest = max((o for o in outcomes if o.plan is not None), key=lambda o: o.row.epsilon, default=None)
    if strictest is not None and strictest.plan is not None:
        bound = 1.0 - strictest.plan.curve.false_negative_rate(rates)
        axes.fill_between(rates, bound, 1.0, color=GREY, alpha=0.18, linewidth=0)
        axes.plot(rates, bound, color=GREY, label=f"bound of ε = {strictest.row.epsilon:.3g}: 1 - f")
        axes.text(rates[1], 0.78, "forbidden to every attack on the\nprivate models", color=GREY, va="top")
    for outcome, colour in zip(outcomes, (ORANGE, BLUE, GREEN, PALE), strict=False):
        title = outcome.row.model.split(", ")[1]
        for attack, values in outcome.scores.items():
            shown = attack in (ATTACK, "loss threshold")
            found, low, high = roc_with_band(pooled(values, outcome.member), rates)
            style = "-" if attack == ATTACK else ":"
            label = f"{title}: {attack}" if shown else None
            axes.plot(rates, found, style, color=colour, label=label, alpha=1.0 if shown else 0.35, lw=1.4)
            if attack == ATTACK:
                axes.fill_between(rates, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.plot(rates, rates, "--", color="black", lw=0.8, label="guessing")
    axes.set(xscale="log", yscale="log", xlim=(rates[0], 1.0), ylim=(rates[0] / 2, 1.0))
    axes.set_xlabel("non-members falsely accused")
    axes.set_ylabel("members found")
    axes.set_title("Who was in the training set? (faint: the other attacks)", fontsize=10)
    axes.legend(fontsize=7.5, loc="lower right")
    axes.grid(alpha=0.25)


def _draw_exposure(axes: Axes, outcomes: list[_Outcome]) -> None:
    """Draw mean exposures over neighbours in rank; half of the shadows rank, the others measure."""
    width = _RECORDS // 40
    for outcome, colour, marker in zip(outcomes, (ORANGE, BLUE, GREEN, PALE), MARKERS, strict=False):
        values = outcome.exposure[outcome.order].reshape(-1, width).mean(axis=1)
        title = outcome.row.model.split(", ")[1]
        axes.plot(
            np.arange(len(values)) * width + width / 2, values, f"{marker}-", ms=3, color=colour, label=title
        )
        if outcome.plan is not None:
            allowed = ndtri(_most_found(outcome.plan, FALSE_ALARMS)) - ndtri(FALSE_ALARMS)
            axes.axhline(float(allowed), ls="--", color=colour, label=f"most that {title} allows (at 1 %)")
    axes.axhline(0.0, color="black", lw=0.8)
    axes.set_xlabel("records, the most exposed first")
    axes.set_ylabel("v: shift of a record's score by training on it, std")
    axes.set_title("How exposed single records are (means of 50)", fontsize=10)
    axes.legend(fontsize=7.5)
    axes.grid(alpha=0.25)


def _draw_gallery(figure: SubFigure, outcome: _Outcome, pool: _Pool) -> None:
    figure.suptitle(
        "Without DP: the most exposed records above, the least below; orange: wrong label", fontsize=10
    )
    grid = np.asarray(figure.subplots(2, _PICTURES))
    for axes_row, chosen in zip(grid, (outcome.order[:_PICTURES], outcome.order[-_PICTURES:]), strict=True):
        for axes, record in zip(axes_row, chosen, strict=True):
            axes.imshow(pool.inputs[record].cpu().reshape(_SIDE, _SIDE).numpy(), cmap="gray_r")
            wrong = pool.mislabelled[record]
            axes.set_title(
                f"“{int(pool.labels[record])}”  v = {outcome.exposure[record]:.1f}", fontsize=7,
                color=ORANGE if wrong else "black",
            )  # fmt: skip
            axes.set_axis_off()
