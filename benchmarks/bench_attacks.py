"""A comparison of attacks and audits with those of other tools: ``python benchmarks/bench_attacks.py``.

For membership attacks, each tool gets the same 2,000 records (MNIST at 14 x 14, 10 % mislabelled, half of
them members), the same target networks, and the same number of shadow models with the same training.  For
audits, each tool gets the same scores of canaries.  Some scores have no signal, and then a bound above 0 is a
false alarm. Others come from a Gaussian mechanism of known epsilon, and then a higher bound is better.

The other tools are not dependencies of Tacit.  Those that are not installed are left out:

    pip install adversarial-robustness-toolbox jax-privacy
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import results
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from experiments.standard import load
from tacit.accounting import account
from tacit.audits import Claim, Scores, audit_one_run, claim_test, clopper_pearson
from tacit.audits.attacks import paired_halves
from tacit.audits.one_run import audit_one_run_by_tradeoff
from tacit.events import ApproximateDP, Gaussian
from tacit.noise.generator import Generator

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout, which contains the experiments
from experiments.attacked import attacked
from experiments.laboratory.ensembles import MLPEnsemble, train_plainly
from experiments.laboratory.repeated import audit_repeated_runs
from experiments.laboratory.suite import Evidence, attack_all

ART, JAX = "adversarial-robustness-toolbox", "jax-privacy"
RECORDS, MISLABELLED, SIZES = 2000, 200, (196, 64, 10)
TRAINING = {"learning_rate": 0.1, "momentum": 0.9, "batch_size": 50, "epochs": 60}
SHADOWS, DELTA, LEVEL, MU = 16, 1e-5, 0.05, 0.9249  # at this mu, epsilon is 4 at delta

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]


def main() -> int:
    """Run all comparisons, and write the JSON after each part."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--targets", type=int, default=4)
    options.add_argument("--runs", type=int, default=1000, help="simulated audits")
    options.add_argument("--canaries", type=int, default=1000)
    options.add_argument("--out", type=Path, default=results.FOLDER / "attacks.json")
    given = options.parse_args()
    missing = [name for name in (ART, JAX) if not results.installed(name)]
    content: dict[str, Any] = {
        "setting": {
            "targets": given.targets, "shadows": SHADOWS, "runs": given.runs, "canaries": given.canaries,
            "epsilon": account(Gaussian(1 / MU), adjacency="add-remove").epsilon(DELTA),
        },
        "missing": missing,
        "audits": audits(given.runs, given.canaries, with_jax=JAX not in missing),
    }  # fmt: skip
    results.write(given.out, "attacks", content, packages=(ART, JAX))
    content["attacks"] = attacks(given.targets, with_art=ART not in missing)
    results.write(given.out, "attacks", content, packages=(ART, JAX))
    return 0


# --- attacks on membership --------------------------------------------------------------------------------


def attacks(targets: int, *, with_art: bool) -> list[dict[str, Any]]:
    """Return a row per attack: its metrics on all targets, and processor seconds per target with shadows."""
    rng = np.random.default_rng()
    x, y = records()
    member = rng.random((targets, RECORDS)) < 0.5
    models = trained(x, y, member)
    start = time.process_time()
    design = paired_halves(SHADOWS, RECORDS, rng)
    shadows = trained(x, y, design).logits(x)
    seconds, scores = time.process_time() - start, dict[str, list[Array]]()
    for outputs in models.logits(x):
        start = time.process_time()
        for name, values in attack_all(Evidence(outputs, shadows, design, y.numpy())).items():
            scores.setdefault(name, []).append(values)
        seconds += (time.process_time() - start) / targets
    rows = [row("Tacit", name, values, member, seconds, rng) for name, values in scores.items()]
    return rows + (attacks_of_art(x, y, models, member, rng) if with_art else [])


def records() -> tuple[Tensor, Tensor]:
    """Return (2000, 196) pictures and (2000,) labels, a tenth of them wrong."""
    data, rng = load("mnist").train, np.random.default_rng(0)
    order = rng.permutation(len(data.inputs))[:RECORDS]
    labels = data.targets[order].numpy().copy()
    wrong = rng.permutation(RECORDS)[:MISLABELLED]
    labels[wrong] = (labels[wrong] + rng.integers(1, SIZES[-1], MISLABELLED)) % SIZES[-1]
    return avg_pool2d(data.inputs[order], 2).flatten(1) - 0.13, torch.from_numpy(labels)


def trained(x: Tensor, y: Tensor, trained_on: Bools) -> MLPEnsemble:
    """Train a network for each row of ``trained_on``."""
    generators = [Generator.from_os() for _ in trained_on]
    models = MLPEnsemble(SIZES, "tanh", generators)
    train_plainly(
        models, x, y, trained_on, generators=generators,
        learning_rate=TRAINING["learning_rate"], momentum=TRAINING["momentum"],
        batch_size=int(TRAINING["batch_size"]), epochs=int(TRAINING["epochs"]),
    )  # fmt: skip
    return models


def row(
    tool: str, name: str, scores: list[Array], member: Bools, seconds: float, rng: np.random.Generator
) -> dict[str, Any]:
    """Return the metrics of one attack on all targets."""
    return attacked(name, scores, member, rng).to_json({"tool": tool, "seconds": seconds})


def attacks_of_art(
    x: Tensor, y: Tensor, models: MLPEnsemble, member: Bools, rng: np.random.Generator
) -> list[dict[str, Any]]:
    """Return rows of ART's learned attacks with its shadow models, and of its label-only attack."""
    from art.attacks.inference import membership_inference as art
    from art.estimators.classification import PyTorchClassifier

    class Classifier(PyTorchClassifier):  # type: ignore[misc] # its shadow models are trained by fit(x, y)
        def fit(self, x: Any, y: Any) -> None:
            super().fit(x, y, batch_size=TRAINING["batch_size"], nb_epochs=TRAINING["epochs"], verbose=False)

    def classifier(weights: list[Tensor] | None) -> Any:
        net = nn.Sequential(nn.Linear(*SIZES[:2]), nn.Tanh(), nn.Linear(*SIZES[1:]))
        if weights is not None:
            with torch.no_grad():
                for parameter, value in zip(net.parameters(), weights, strict=True):
                    parameter.copy_(value)
        optimizer = torch.optim.SGD(
            net.parameters(), lr=TRAINING["learning_rate"], momentum=TRAINING["momentum"]
        )
        return Classifier(net, nn.CrossEntropyLoss(), SIZES[:1], SIZES[-1], optimizer)

    inputs, labels = x.numpy(), y.numpy()
    one_hot = np.eye(SIZES[-1], dtype=np.float32)[labels]
    start = time.process_time()
    inside, outside = art.ShadowModels(classifier(None), num_shadow_models=SHADOWS).generate_shadow_dataset(
        inputs, one_hot
    )
    shadow_seconds = time.process_time() - start
    rows = []
    logits = models.logits(x)
    for kind in ("rf", "gb", "nn"):
        start = time.process_time()
        attack = art.MembershipInferenceBlackBox(classifier(None), attack_model_type=kind)
        attack.fit(inside[0], inside[1], outside[0], outside[1], pred=inside[2], test_pred=outside[2])
        found = [attack.infer(inputs, labels, pred=own, probabilities=True) for own in logits]
        scores = [np.asarray(values, dtype=np.float64).reshape(len(inputs), -1)[:, -1] for values in found]
        rows.append(
            row(
                "ART", f"black box, {kind}", scores, member, shadow_seconds + time.process_time() - start, rng
            )
        )
    start, scores = time.process_time(), []
    for target in range(len(member)):
        rule = art.MembershipInferenceBlackBoxRuleBased(
            classifier([part[target] for part in models.parameters])
        )
        scores.append(np.asarray(rule.infer(inputs, labels), dtype=np.float64).ravel())
    seconds = (time.process_time() - start) / len(member)
    return [*rows, row("ART", "by the predicted label", scores, member, seconds, rng)]


# --- audits of canaries -----------------------------------------------------------------------------------

Audit = Callable[[Array, Bools, np.random.Generator], float]


def audits(runs: int, canaries: int, *, with_jax: bool) -> list[dict[str, Any]]:
    """Return a row per method: its false alarms without signal, its bounds at epsilon 4, and its time."""
    methods = {("Tacit", name): audit for name, audit in audits_of_tacit().items()}
    if with_jax:
        methods |= {("jax_privacy", name): audit for name, audit in audits_of_jax_privacy().items()}
    return [
        {"tool": tool, "method": name, **_judged(audit, runs, canaries)}
        for (tool, name), audit in methods.items()
    ]


def _judged(audit: Audit, runs: int, canaries: int) -> dict[str, Any]:
    alarms, proven, start = 0, [], time.process_time()
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        coins = rng.random(canaries) < 0.5
        alarms += audit(rng.standard_normal(canaries), coins, rng) > 0.0
    seconds = time.process_time() - start
    for seed in range(max(1, runs // 20)):
        rng = np.random.default_rng(seed)
        coins = rng.random(canaries) < 0.5
        proven.append(audit(MU * coins + rng.standard_normal(canaries), coins, rng))
    share = clopper_pearson(alarms, runs, confidence=0.95)
    return {
        "false": share.value, "false_low": share.low, "false_high": share.high,
        "proven": float(np.mean(proven)), "milliseconds": 1000.0 * seconds / runs,
    }  # fmt: skip


def audits_of_tacit() -> dict[str, Audit]:
    """Return Tacit's audits, which claim almost no leak; the claim only decides the range of thresholds."""
    claim = Claim(account(ApproximateDP(1e-3, 0.0), adjacency="add-remove"), delta=DELTA)
    common: dict[str, Any] = {"delta": DELTA, "confidence": 1.0 - LEVEL}
    return {
        "claim test": lambda scores, coins, rng: (
            claim_test(Scores.of(scores, coins), claim, confidence=1.0 - LEVEL, rng=rng).eps_lower
        ),
        "one run": lambda scores, coins, rng: audit_one_run(scores, coins, rng=rng, **common).eps_lower,
        "one run, trade-off curve": lambda scores, coins, rng: (
            audit_one_run_by_tradeoff(scores, coins, rng=rng, **common).eps_lower
        ),
        "repeated runs": lambda scores, coins, rng: (
            audit_repeated_runs(Scores.of(scores, coins), rng=rng, **common).eps_lower
        ),
    }


def audits_of_jax_privacy() -> dict[str, Audit]:
    """Return jax-privacy's audits; all but the last have its default correction over all thresholds."""
    from jax_privacy import auditing

    def auditor(scores: Array, coins: Bools) -> Any:
        return auditing.CanaryScoreAuditor(scores[coins], scores[~coins])

    return {
        "one run": lambda scores, coins, _: auditor(scores, coins).epsilon_one_run(LEVEL, DELTA),
        "one run, f-DP": lambda scores, coins, _: auditor(scores, coins).epsilon_one_run_fdp(LEVEL, DELTA),
        "Clopper–Pearson": lambda scores, coins, _: auditor(scores, coins).epsilon_clopper_pearson(
            LEVEL, DELTA
        ),
        "Clopper–Pearson, halves": lambda scores, coins, rng: auditor(scores, coins).epsilon_clopper_pearson(
            LEVEL, DELTA, threshold_strategy=auditing.Split(seed=int(rng.integers(2**31)))
        ),
        "Gaussian": lambda scores, coins, _: auditor(scores, coins).epsilon_from_gdp(LEVEL, DELTA),
    }


if __name__ == "__main__":
    sys.exit(main())
