"""The verdict on a model: it calls a useless model useless first, and no useful one."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tacit.report.evaluation import evaluation_data, evaluation_page, evaluation_text, score_line
from tacit.report.verdict import verdict
from tacit.training import Evaluation, evaluate

NAMES = ("no", "yes")
SETTINGS = {"epsilon": "1", "steps": "60", "batch_size": "64 of 4,000 records", "learning_rate": "0.5"}


class Given(nn.Module):
    """The records are the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, outputs: Tensor) -> Tensor:
        return outputs


def of_answers(labels: Any, answers: Any, classes: int = 2) -> Evaluation:
    labels, answers = (torch.as_tensor(np.array(one, dtype=np.int64)) for one in (labels, answers))
    return evaluate(Given(), torch.eye(classes)[answers], labels)


def of_matrix(*rows: tuple[int, ...]) -> Evaluation:
    """The evaluation of these numbers of records, by true class (row) and answer (column)."""
    pairs = [(i, j) for i, row in enumerate(rows) for j, count in enumerate(row) for _ in range(count)]
    return of_answers([i for i, _ in pairs], [j for _, j in pairs], len(rows))


def told(found: Evaluation, names: tuple[str, ...] = NAMES) -> dict[str, Any]:
    return evaluation_data(found, classes=names, settings=SETTINGS)


def test_a_model_that_answers_the_majority_is_useless_and_says_what_it_misses() -> None:
    data = told(of_matrix((863, 0), (137, 0)))
    assert data["useless"]
    assert data["verdict"].startswith('USELESS: the model predicts "no" for every test record.')
    assert 'The model never predicts "yes" (137 of 1,000 test records).' in data["verdict"]
    assert "accuracy is 0.8630" in data["verdict"]
    for advice in ("class_weights", "threshold", "epsilon (now 1)", "steps (now 60)", "rate (now 0.5)"):
        assert advice in data["verdict"]
    assert "a larger batch (now 64 of 4,000 records)" in data["advice"]


def test_of_a_useless_model_that_ranks_it_is_said() -> None:
    labels = torch.arange(200) % 4 == 0
    outputs = torch.stack([torch.ones(200), torch.where(labels, 0.5, 0.0)], 1)
    data = told(evaluate(Given(), outputs, labels.long()))
    assert data["useless"]
    assert "It does rank the records (AUC 1.00)" in data["verdict"]
    assert "rank" not in told(of_matrix((863, 0), (137, 0)))["verdict"]


def ranked(auc_shift: float, positives: int = 30, records: int = 1000) -> Evaluation:
    """The evaluation of a rare class, its outputs higher by ``auc_shift`` deviations, all below one half."""
    labels = torch.arange(records) < positives
    rng = np.random.default_rng(0)
    scores = torch.from_numpy(rng.normal(size=records)) + auc_shift * labels
    return evaluate(Given(), torch.stack([torch.full((records,), 20.0), scores.float()], 1), labels.long())


def test_a_model_that_ranks_a_rare_class_well_is_not_useless() -> None:
    """Its accuracy is that of the majority class, for no probability is above one half."""
    data = told(ranked(2.2))
    assert data["score"] == data["baseline"]["score"] == 0.97
    assert not data["useless"]
    assert "ranks the records well: AUC 0.9" in data["verdict"]
    assert "average precision" in data["verdict"]
    assert data["advice"][0] == "another threshold, at no cost (tacit predict --threshold 0.1)"
    assert "below 1 for the majority class" in data["advice"][1]


@pytest.mark.parametrize(("shift", "positives"), [(2.2, 13), (0.6, 30)])
def test_few_records_of_a_rare_class_do_not_show_how_well_they_are_ranked(
    shift: float, positives: int
) -> None:
    """13 are too few; with 30 the interval of an AUC of 0.65 reaches below 0.6."""
    words = told(ranked(shift, positives))["verdict"]
    assert "ranks the records well" not in words
    assert f'better than chance, but {positives} test records of "yes" do not show how well: AUC' in words


def test_where_the_first_class_is_rare_the_threshold_of_the_second_goes_up() -> None:
    data = told(of_matrix((0, 30), (0, 970)))
    assert data["advice"][0] == "another threshold, at no cost (tacit predict --threshold 0.9)"


def test_a_model_that_ranks_a_rare_class_by_chance_is_useless() -> None:
    assert told(ranked(0.0))["useless"]
    assert told(ranked(0.1))["useless"]


def test_a_model_that_answers_another_class_alone_is_below_the_constant_one() -> None:
    words = told(of_matrix((0, 863), (0, 137)))["verdict"]
    assert 'predicts "yes" for every test record' in words
    assert "accuracy is 0.1370, and 0.8630 for the majority class" in words
    assert 'never predicts "no"' in words


@pytest.mark.parametrize(
    "rows",
    [
        ((850, 13), (133, 4)),  # more than the majority, by chance
        ((862, 1), (134, 3)),  # hardly more
        ((400, 463), (64, 73)),  # a coin
    ],
)
def test_a_model_hardly_better_is_useless(rows: tuple[tuple[int, int], ...]) -> None:
    data = told(of_matrix(*rows))
    assert data["useless"]
    assert re.search(
        r"USELESS: the model is (no|hardly) better than the majority class \"no\"", data["verdict"]
    )


@pytest.mark.parametrize("rows", [((840, 23), (60, 77)), ((700, 163), (40, 97))])
def test_a_model_that_finds_the_rare_class_is_not(rows: tuple[tuple[int, int], ...]) -> None:
    """The second has less accuracy than the majority."""
    data = told(of_matrix(*rows))
    assert not data["useless"]
    assert data["advice"] == []
    below = data["score"] < data["baseline"]["score"]
    assert ("is not above the 0.8630" in data["verdict"]) == below
    assert ("the model does distinguish the classes" in data["verdict"]) == below


def test_a_class_that_is_never_predicted_is_named_first() -> None:
    data = told(of_matrix((90, 5, 0), (4, 60, 0), (3, 3, 0)), ("a", "b", "rare <one>"))
    assert not data["useless"]
    assert data["verdict"].startswith(
        'The model never predicts "rare <one>" (6 of 165 test records). Test acc'
    )
    assert "Try" in data["verdict"]
    assert "&lt;one&gt;" in evaluation_page(data, title="x")
    guarantee = {"epsilon": 2.34, "delta": 1e-5, "unit": "row", "adjacency": "add-remove"}
    begin = evaluation_page(data, title="x", guarantee=guarantee).partition('class="verdict')[0]
    assert begin.index("ε = 2.34<") < begin.index("for one row (add-remove)") < begin.index("Test accuracy")
    assert "<one>" not in evaluation_page(data, title="x")


def test_classes_without_test_records_are_no_fault() -> None:
    data = told(of_matrix((40, 5, 0), (5, 40, 0), (0, 0, 0)), ("a", "b", "c"))
    assert "never" not in data["verdict"]
    assert data["balanced_accuracy_of_a_constant"] == 0.5
    assert data["classes"][2]["recall"] is None
    only = told(of_matrix((40, 0), (0, 0)))
    assert not only["useless"]
    assert "there is nothing to compare" in only["verdict"]


@pytest.mark.parametrize("share", [0.137, 0.5])
def test_guesses_are_called_useless(share: float) -> None:
    """Answers that know nothing of the record, and are yes as often as the truth is."""
    rng = np.random.default_rng(5)
    useless = [
        verdict(of_answers(rng.random(800) < share, rng.random(800) < share), NAMES, "x").useless
        for _ in range(200)
    ]
    assert np.mean(useless) > 0.9


def test_many_classes_are_held_against_a_small_baseline() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 100, 5000)
    answers = np.where(rng.random(5000) < 0.05, labels, rng.integers(0, 100, 5000))
    names = tuple(f"class {n}" for n in range(100))
    assert not told(of_answers(labels, answers, 100), names)["useless"], "five times as good"
    assert told(of_answers(labels, rng.integers(0, 100, 5000), 100), names)["useless"]


def test_a_model_that_diverged_is_said_to_have() -> None:
    outputs = torch.full((10, 2), math.nan)
    data = told(evaluate(Given(), outputs, torch.arange(10) % 2))
    assert data["useless"]
    assert data["verdict"].startswith(
        "USELESS: the outputs of the model are NaN or infinite for 10 test records"
    )
    assert "smaller learning rate (now 0.5)" in data["verdict"]
    json.dumps(data, allow_nan=False)
    evaluation_page(data, title="x")
    evaluation_text(data)


@pytest.mark.parametrize(("slope", "useless"), [(0.0, True), (0.1, True), (1.0, False), (-1.0, True)])
def test_numbers(slope: float, useless: bool) -> None:
    rng = torch.Generator().manual_seed(0)
    targets = torch.rand(500, 1, generator=rng) * 2 - 1
    noise = 0.1 * torch.randn(500, 1, generator=rng)
    found = evaluate(
        Given(), slope * targets / 5 + noise if slope == 0.1 else slope * targets + noise, targets
    )
    data = evaluation_data(found, targets=("age",))
    assert data["useless"] == useless
    assert data["errors"][0]["target"] == "age"
    assert "the mean of the test records" in data["verdict"]
    assert "root mean squared" in evaluation_text(data)
    assert f"{data['errors'][0]['mean_absolute']:.4g}" in evaluation_page(data, title="x")


def test_targets_that_are_all_the_same() -> None:
    data = evaluation_data(evaluate(Given(), torch.randn(5, 1), torch.ones(5, 1)))
    assert "all test targets are equal" in data["verdict"]
    json.dumps(data, allow_nan=False)


@pytest.mark.parametrize(("share", "useless"), [(0.3, True), (0.4, True), (0.45, False)])
def test_text(share: float, useless: bool) -> None:
    found = Evaluation(share, 1.0, (), "accuracy per character", baseline=0.38, constant=3)
    data = evaluation_data(found)
    assert data["useless"] == useless
    assert "the most frequent character" in data["verdict"]


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        ((0.40, 0.48), "USELESS: the model is no better than chance: accuracy 0.440 (0.400 to 0.480)"),
        ((0.45, 0.55), "It is uncertain whether"),
        ((0.55, 0.70), "Test accuracy 0.625 (0.550 to 0.700), against 0.500 for chance."),
    ],
)
def test_a_noisy_score(interval: tuple[float, float], words: str) -> None:
    value = sum(interval) / 2
    found = Evaluation(value, None, (), interval=interval, noise=9.0, steps=3, baseline=0.5)
    data = evaluation_data(found, classes=NAMES, baseline="chance", settings=SETTINGS)
    assert data["verdict"].startswith(words)
    assert data["useless"] == words.startswith("USELESS")
    assert not {"classes", "confusion_matrix", "auc", "balanced_accuracy"} & set(data)
    assert evaluation_text(data) == ""
    assert score_line(data).endswith(f"({interval[0]:.3f} to {interval[1]:.3f}) (baseline: 0.500)")
    assert "noise of 9 test records" in evaluation_page(data, title="x")
    assert "exact figures" not in evaluation_page(data, title="x")


@pytest.mark.parametrize(
    ("interval", "useless"), [((0.4, 0.5), True), ((0.3, 0.4), False), ((0.1, 0.2), False)]
)
def test_of_a_noisy_error_the_smaller_is_the_better(interval: tuple[float, float], useless: bool) -> None:
    measure = "mean squared error of targets in [-1, 1]"
    found = Evaluation(sum(interval) / 2, None, (), measure, interval, 9.0, 3, baseline=1 / 3)
    data = evaluation_data(found, baseline="the middle of the bounds")
    assert data["useless"] == useless
    assert ("is uncertain" in data["verdict"]) == (interval[0] == 0.3)


def test_rows_are_true_classes_and_columns_predicted_ones_in_text_and_page() -> None:
    data = told(of_matrix((80, 20), (3, 7)))
    lines = evaluation_text(data).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("true \\ predicted"))
    assert lines[start].split() == ["true", "\\", "predicted", "no", "yes", "recall"]
    assert lines[start + 1].split() == ["no", "80", "20", "0.8000"]
    assert lines[start + 2].split() == ["yes", "3", "7", "0.7000"]
    page = evaluation_page(data, title="x").split("Confusion matrix")[1]
    cells = re.findall(r"<tr><th scope=\"row\">(\w+)</th>(.*?)</tr>", page)
    assert [(name, re.findall(r"<i>(\d+)</i>", row)) for name, row in cells] == [
        ("no", ["80", "20"]),
        ("yes", ["3", "7"]),
    ]
    assert [one["records"] for one in data["classes"]] == [100, 10]
    assert [one["predicted"] for one in data["classes"]] == [83, 27]
    assert (data["confusion_matrix_rows"], data["confusion_matrix_columns"]) == (
        "true class",
        "predicted class",
    )


@pytest.mark.parametrize("classes", [2, 3, 10, 40, 300])
def test_the_text_fits_a_terminal_and_the_page_stands_alone(classes: int) -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, classes, 3000)
    answers = np.where(rng.random(3000) < 0.7, labels, rng.integers(0, classes, 3000))
    data = told(of_answers(labels, answers, classes), tuple(f"a long name, {n}" for n in range(classes)))
    text, page = evaluation_text(data), evaluation_page(data, title="<b>")
    assert max(map(len, text.splitlines())) <= 79
    assert ("true \\ predicted" in text) == (classes < 10)
    assert "<script" not in page
    assert "<b>" not in page.split("<body>")[1].split("</h1>")[0]
    assert ("Confusion matrix" in page) == (classes <= 200)
    assert json.loads(json.dumps(data, allow_nan=False))["classes"][1]["class"] == "a long name, 1"


def test_a_test_key_is_marked() -> None:
    found = of_matrix((8, 2), (3, 7))
    assert "NOT PRIVATE" in evaluation_page(evaluation_data(found, private=False), title="x")
    assert "NOT PRIVATE" not in evaluation_page(evaluation_data(found), title="x")
