"""The published figures have sources, and the planner agrees with the paper and with VaultGemma.

McKenna et al., "Scaling laws for differentially private language models", 2501.18914; the sections named
below are of that paper.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import tacit
from experiments.scaling import LanguageModelRequest, Law, advise_language_model
from experiments.scaling.advice import loss_over_compute, without_privacy
from experiments.scaling.published import published_facts, published_law, published_runs

DATA = published_facts()
TABLE = DATA["runs"]


def question(records: int, epsilon: float, flops: float) -> LanguageModelRequest:
    """Return a question with the paper's settings: delta 1e-8, sequences of 512 tokens."""
    return LanguageModelRequest(
        records=records, epsilon=epsilon, flops=flops, delta=1e-8, adjacency="add-remove", unit="sequence",
        sequence_length=512, allow_large_delta=True,
    )  # fmt: skip


def test_every_published_figure_names_its_source() -> None:
    entries = [
        *TABLE,
        *DATA["law_notes"].values(),
        *DATA["non_private"].values(),
        *DATA["vaultgemma"].values(),
    ]
    assert len(entries) == 20 + 5 + 2 + 8
    for entry in entries:
        assert len(entry["source"]) > 10, entry
    assert len(published_law().source) > 10
    articles = [name for name, entry in DATA["vaultgemma"].items() if "MarkTechPost" in str(entry["source"])]
    second_hand = [name for name, entry in DATA["vaultgemma"].items() if entry.get("second_hand")]
    assert "tokens" in articles
    assert second_hand == ["tokens", "batch_size", "steps", "noise_multiplier"]


def test_the_table_agrees_with_itself() -> None:
    """FLOPs = 6 M T B S, to the two digits that the paper prints."""
    for row in TABLE:
        flops = 6 * row["model_size"] * row["steps"] * row["batch_size"] * 512
        assert flops == pytest.approx(row["flops"], rel=0.08)


@pytest.mark.filterwarnings("ignore:epsilon = 64 is too weak")
def test_the_noise_of_the_table_is_what_the_accountant_says() -> None:
    for row in TABLE:
        plan = tacit.Plan.calibrate(
            epsilon=row["epsilon"], delta=row["delta"], records=row["records"], batch_size=row["batch_size"],
            steps=row["steps"], clipping=1.0, adjacency="add-remove", unit="sequence", allow_large_delta=True,
        )  # fmt: skip
        assert plan.noise_multiplier / row["batch_size"] == pytest.approx(row["noise_batch_ratio"], rel=1e-3)


def test_the_published_law_is_the_fit_to_the_published_runs() -> None:
    law = published_law()
    again = Law.fit(published_runs(), sequence_length=512, source=law.source)
    for row in TABLE:
        where = {name: row[name] for name in ("model_size", "steps", "noise_batch_ratio")}
        assert again.loss(**where) == pytest.approx(law.loss(**where), rel=1e-3)
        assert law.loss(**where) == pytest.approx(row["loss"], rel=0.03)
    assert again.quality.typical == pytest.approx(law.quality.typical, rel=0.02)
    assert law.quality.typical < 0.014
    assert law.quality.held_out < 0.03


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("row", [2, 5, 6, 8, 9, 10, 12])
def test_the_advice_agrees_with_the_paper_where_its_optimum_is_inside_its_grid(row: int) -> None:
    """The law was fitted to the losses alone; the fit does not know that these settings are the best."""
    paper = TABLE[row]
    advice = advise_language_model(
        question(paper["records"], paper["epsilon"], paper["flops"]), published_law()
    )
    assert advice.best.loss == pytest.approx(paper["loss"], rel=0.04)
    assert 1 / 2.5 < advice.best.model_size / paper["model_size"] < 2.5
    assert 1 / 3 < advice.best.steps / paper["steps"] < 3
    assert 1 / 3 < advice.best.batch_size / paper["batch_size"] < 3


@pytest.mark.thorough(instead="test_the_choice_without_privacy_wastes_the_promise")
def test_private_models_are_smaller_and_batches_larger_than_without_privacy() -> None:
    """Section 4.1: at 1e22 FLOPs about 1e8 parameters are best, and about 1e10 without privacy."""
    advice = advise_language_model(question(10**8, 1.0, 1e22), published_law())
    assert 5e7 < advice.best.model_size < 2e8
    assert 5e9 < advice.non_private.model_size < 2e10
    assert advice.best.batch_size > 100 * advice.non_private.batch_size
    assert without_privacy(question(10**8, 1, 1e22), published_law()).loss is None  # far beyond the law


def test_the_choice_without_privacy_wastes_the_promise() -> None:
    """Section 4.4: at 1e19 FLOPs and ten million records it gives very low utility."""
    advice = advise_language_model(question(10**7, 4.0, 1e19), published_law())
    other = advice.non_private.with_privacy
    assert other is not None
    assert other.model_size == pytest.approx(335e6, rel=0.2)
    assert other.loss > 2 * advice.best.loss
    assert advice.non_private.loss is not None
    assert advice.non_private.loss < 0.6 * advice.best.loss


def test_more_compute_alone_gives_less_and_less_and_then_nothing() -> None:
    """Sections 4.2 and C.1; the point grows with the budget of privacy."""
    points = loss_over_compute(
        question(10**7, 1.0, 1e20), published_law(), epsilon=1.0, flops=np.geomspace(1e18, 1e22, 9)
    )
    losses = [point.loss for point in points]
    gains = [1 - later / earlier for earlier, later in pairwise(losses)]
    assert gains[0] > 0.05
    assert gains[-1] < 0.005
    assert all(gain >= 0 for gain in gains)
    saturated, still_good = (
        advise_language_model(question(10**7, epsilon, 1e21), published_law()) for epsilon in (1.0, 16.0)
    )
    assert saturated.saved_by_twice_flops < 0.01 < still_good.saved_by_twice_flops
    assert saturated.saved_by_twice_epsilon > 5 * saturated.saved_by_twice_flops


def vaultgemma(name: str) -> float:
    return float(DATA["vaultgemma"][name]["value"])


VAULTGEMMA = LanguageModelRequest(
    records=int(vaultgemma("tokens") / vaultgemma("sequence_length")), unit="sequence of 1024 tokens",
    epsilon=vaultgemma("epsilon"), delta=vaultgemma("delta"), adjacency="add-remove", allow_large_delta=True,
    flops=6 * vaultgemma("model_size") * vaultgemma("steps") * vaultgemma("batch_size") * 1024,
    sequence_length=1024, model_size=vaultgemma("model_size"), extrapolate=True,
)  # fmt: skip


def test_the_advice_for_the_budget_of_vaultgemma_is_its_published_setting() -> None:
    """Steps and noise-batch ratio are in the law's range; the model size is beyond it, with a warning."""
    advice = advise_language_model(VAULTGEMMA, published_law())
    best, near = advice.best, advice.near_best
    assert best.steps == pytest.approx(vaultgemma("steps"), rel=0.1)
    assert best.batch_size == pytest.approx(vaultgemma("batch_size"), rel=0.1)
    assert best.noise_multiplier == pytest.approx(vaultgemma("noise_multiplier"), rel=0.05)
    assert near.steps[0] < vaultgemma("steps") < near.steps[1]
    assert near.batch_size[0] < vaultgemma("batch_size") < near.batch_size[1]
    assert best.beyond == ("1B parameters are outside",)
    assert "guess" in advice.warnings[0]
    with pytest.raises(tacit.TacitError, match="1B parameters are outside the scaling law"):
        advise_language_model(replace(VAULTGEMMA, extrapolate=False), published_law())


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize(("batch", "fits"), [(518_000, True), (518_000 / 1024, False)])
def test_the_batch_of_vaultgemma_counts_sequences(batch: float, fits: bool) -> None:
    """If the batch counted tokens, as the article says, its noise would cost a seventieth of its epsilon."""
    rate = batch / VAULTGEMMA.records
    event = tacit.Repeat(tacit.PoissonSampled(rate, tacit.Gaussian(vaultgemma("noise_multiplier"))), 100_000)
    epsilon = tacit.account(event, adjacency="add-remove").epsilon(VAULTGEMMA.delta)
    assert (1.5 < epsilon <= 2.0) is fits
    assert fits or epsilon < 0.05
