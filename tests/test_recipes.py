"""Recipes are functions of public figures, keep the noise of a body's run small, and name real layers."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest
import torch
from torch import nn

from tacit.errors import InvalidInput
from tacit.plan import Plan
from tacit.recipes import Recipe, additive_pays, full_recipe, linear_recipe, lora_recipe, lora_targets

GRID = Path(__file__).parent.parent / "experiments/searches/which-model.jsonl"
LORA, ALL = 37_634, 10_647_554  # weights of MiniLM at rank 4, and of all its layers


def noise_of(recipe: Recipe, records: int, epsilon: float, weights: int) -> float:
    """Return the noise of the mean gradient of a run, in clipping norms."""
    plan = Plan.calibrate(
        epsilon=epsilon,
        delta=min(1e-5, 0.1 / records),
        records=records,
        batch_size=recipe.batch_size,
        steps=recipe.steps,
        clipping=recipe.clipping_norm,
        adjacency="add-remove",
        unit="review",
    )
    return plan.noise_multiplier * math.sqrt(weights / recipe.steps) / (recipe.batch_size or records)


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("epsilon", [1.0, 8.0])
@pytest.mark.parametrize("records", [300, 6_000, 100_000])
def test_a_smaller_batch_than_all_records_leaves_little_noise(records: int, epsilon: float) -> None:
    for make, weights in ((lora_recipe, LORA), (full_recipe, ALL)):
        recipe = make(records, epsilon, weights)
        if recipe.batch_size is None:
            continue
        assert 250 <= recipe.batch_size < records
        assert noise_of(recipe, records, epsilon, weights) <= 0.12


def test_more_weights_or_less_epsilon_need_a_larger_share_of_the_records() -> None:
    assert lora_recipe(12_500, 8.0, LORA).batch_size == 250
    assert lora_recipe(12_500, 1.0, LORA).batch_size == 625
    assert full_recipe(12_500, 8.0, ALL).batch_size is None
    assert lora_recipe(2_000, 8.0, LORA).batch_size == 500
    assert lora_recipe(2_000, 1.0, LORA).batch_size is None
    assert lora_recipe(1, 8.0, LORA).batch_size is None


def test_recipes_of_a_body_say_what_they_train_and_fall_to_zero() -> None:
    recipe = lora_recipe(6_000, 3.0, LORA)
    assert (recipe.rank, recipe.alpha) == (4, 16)
    assert full_recipe(6_000, 3.0, ALL).rank is None
    shares = [recipe.share_of_rate(step) for step in range(recipe.steps)]
    assert shares[: recipe.steps // 2] == [1.0] * (recipe.steps // 2)
    assert shares == sorted(shares, reverse=True)
    assert 0.0 < shares[-1] < 0.1
    assert linear_recipe(6_000, 3.0).share_of_rate(10) == 1.0


@pytest.mark.parametrize(
    ("records", "epsilon", "weights", "named"),
    [
        (0, 8.0, 10, "records"),
        (10, 0.0, 10, "epsilon"),
        (10, 8.0, 0, "weights"),
        (10, math.nan, 1, "epsilon"),
    ],
)
def test_figures_out_of_range_are_named(records: int, epsilon: float, weights: int, named: str) -> None:
    for make in (lora_recipe, full_recipe):
        with pytest.raises(InvalidInput, match=named):
            make(records, epsilon, weights)


TINY = {
    "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
    "vocab_size": 20, "n_embd": 8, "n_layer": 1, "n_head": 2, "dim": 8, "n_layers": 1, "n_heads": 2,
    "hidden_dim": 8, "num_key_value_heads": 2, "head_dim": 4, "embedding_size": 8, "image_size": 8,
    "patch_size": 4, "pad_token_id": 0, "ffn_dim": 8, "word_embed_proj_dim": 8,
}  # fmt: skip
TYPES = (
    *("albert", "beit", "bert", "camembert", "deberta-v2", "deit", "dinov2", "distilbert", "electra"),
    *("gemma", "gemma2", "gpt2", "gpt_neox", "llama", "mistral", "modernbert", "mpnet", "opt", "qwen2"),
    *("qwen3", "roberta", "vit", "xlm-roberta"),
)


@pytest.mark.parametrize("model_type", TYPES)
def test_targets_are_layers_of_the_type_as_transformers_builds_it(model_type: str) -> None:
    transformers = pytest.importorskip("transformers")
    known = transformers.AutoConfig.for_model(model_type)
    config = transformers.AutoConfig.for_model(
        model_type, **{name: value for name, value in TINY.items() if hasattr(known, name)}
    )
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(config)
    layers: dict[str, nn.Module] = {name.rpartition(".")[2]: part for name, part in model.named_modules()}
    for target in lora_targets(model_type):
        assert type(layers[target]).__name__ in ("Linear", "Conv1D")


def test_another_type_is_refused_with_what_to_write() -> None:
    with pytest.raises(InvalidInput, match=r"model_type 'mamba' has no known LoRA targets.*\[lora\] targets"):
        lora_targets("mamba")


@pytest.mark.parametrize(
    ("rows", "columns", "pays"), [(1600, 500, False), (1600, 100, False), (10_000, 5, True)]
)
def test_bins_of_many_columns_need_many_records(rows: int, columns: int, pays: bool) -> None:
    assert additive_pays(rows, 3.0, columns) == pays


def test_the_choice_of_bins_is_close_to_the_better_model_on_the_measured_grid() -> None:
    """For straight effects; each AUC is the mean of three fits at epsilon 1, 3 and 8."""
    measured: dict[tuple[int, int, str, float], dict[str, float]] = {}
    for line in map(json.loads, GRID.read_text(encoding="utf-8").splitlines()):
        rows, columns, kind, model = (line["settings"][key] for key in ("rows", "columns", "kind", "model"))
        for place, epsilon in enumerate((1.0, 3.0, 8.0)):
            auc = statistics.mean(line["scores"][3 * place : 3 * place + 3])
            measured.setdefault((rows, columns, kind, epsilon), {})[model] = auc
    assert len({(rows, columns) for rows, columns, *_ in measured}) >= 20
    for (rows, columns, kind, epsilon), aucs in measured.items():
        chosen = "additive" if additive_pays(rows, epsilon, columns) else "linear"
        assert kind == "curved" or aucs[chosen] >= max(aucs.values()) - 0.012
