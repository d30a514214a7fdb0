"""The search for the optimizer of a language model, with two steps of each trial."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import pytest
import torch

from experiments import text_optimizers
from experiments.text_optimizers import OPTIMIZERS, Trial
from experiments.tries import Tries

pytest.importorskip("transformers")
pytest.importorskip("peft")


def test_a_record_predicts_each_byte_from_those_before_it() -> None:
    inputs, targets = text_optimizers.records_of(["ab", "abcdef"], 4)
    a, b, c, d = b"abcd"
    assert inputs[0, :3].tolist() == [text_optimizers.END, a, b]
    assert targets.tolist() == [[a, b, text_optimizers.END, -100], [a, b, c, d]]
    assert inputs[1].tolist() == [text_optimizers.END, a, b, c]


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("task", ["names, LoRA", "names, all weights"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_quick_run_on_names(
    task: str, optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = text_optimizers.records_of(["anna", "ben"] * 60, text_optimizers.LENGTH)
    monkeypatch.setattr(text_optimizers, "names", lambda: records)
    monkeypatch.setattr(text_optimizers, "public_llama", lambda steps: text_optimizers.new_llama())
    for name, value in {"NAMES": 100, "BATCH": 20, "WIDTH": 8, "LAYERS": 1}.items():
        monkeypatch.setattr(text_optimizers, name, value)
    torch.manual_seed(0)
    loss = text_optimizers.on_names(Trial(task, 8.0, optimizer, 1e-3), quick=True)
    assert 0 < loss < 2 * math.log(257)


def test_the_best_rate_gets_two_more_seeds(tmp_path: Path) -> None:
    tries = Tries(tmp_path / "tries.jsonl")
    found = []
    for trial in text_optimizers.trials(["names, LoRA"], [1.0], tries):
        found.append(trial)
        score = -abs(trial.learning_rate - 0.01)
        tries.make(vars(trial), partial(list, [score]))
    of_adam = [trial for trial in found if trial.optimizer == "adam"]
    assert [trial.seed for trial in of_adam] == [0, 0, 0, 1, 2]
    assert {trial.learning_rate for trial in of_adam[3:]} == {0.01}
