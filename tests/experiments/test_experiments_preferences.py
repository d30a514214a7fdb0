"""Preferences with a public rule, with two steps of a trial."""

from __future__ import annotations

import random

import pytest
import torch

from experiments import preferences
from experiments.preferences import FIGURES, RULES, THINGS, VOCABULARY, Trial

pytest.importorskip("transformers")
pytest.importorskip("peft")


@pytest.mark.parametrize("rule", RULES)
def test_the_two_answers_of_a_pair_differ_by_the_rule_alone(rule: str) -> None:
    dice = random.Random(0)
    for _ in range(50):
        _, chosen, rejected = preferences.pair(rule, dice)
        assert chosen.thing == rejected.thing
        if rule == "thanks":
            assert (chosen.thanks, rejected.thanks) == (True, False)
            assert chosen.desk == rejected.desk
        else:
            assert chosen.thanks == rejected.thanks
            assert chosen.desk == THINGS[chosen.thing] != rejected.desk


def test_a_record_has_the_question_and_marks_the_answer() -> None:
    record = preferences.records("desk", 1, 0)
    tokens, mask = record["input_ids"][0, 0], record["completion_mask"][0, 0]
    words = [VOCABULARY[number] for number in tokens.tolist()]
    answer = [word for word, marked in zip(words, mask.tolist(), strict=True) if marked]
    assert words[0] == "where"
    assert answer[-3:] == ["desk", ".", "<end>"]
    assert words[words.index("?") + 1 :][: len(answer)] == answer


@pytest.mark.parametrize("epsilon", [8.0, None])
def test_a_quick_trial(epsilon: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PUBLIC": 64, "PAIRS": 60, "BATCH": 20}.items():
        monkeypatch.setattr(preferences, name, value)
    torch.manual_seed(0)
    scores = dict(
        zip(FIGURES, preferences.run(Trial("thanks", 0.1, epsilon, 1e-3, 0), quick=True), strict=True)
    )
    assert 1 < scores["perplexity"] < 10 * len(VOCABULARY)
    assert all(0 <= scores[name] <= 1 for name in FIGURES if not name.startswith("perplexity"))
