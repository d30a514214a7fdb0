"""[training] loss names the loss of a run: the data's own, or the mean per character of text."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from run_files import digits_run
from torch import nn

from tacit.datasets import Dataset, TensorPair, load
from tacit.errors import InvalidInput
from tacit.runs.config import parse_config
from tacit.runs.model import losses_of, text_loss

RUN = digits_run("batch_size = 64; steps = 2", privacy="epsilon = 1.0", optimizer="learning_rate = 0.1")


def of_numbers() -> Dataset:
    pair = TensorPair(torch.zeros(4, 2), torch.zeros(4, 1))
    return Dataset("toy", pair, pair, classes=(), source="made up", unit="row", target_bounds=((0.0, 1.0),))


def of_labels() -> Dataset:
    pair = TensorPair(torch.randn(4, 2), torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 1.0]]))
    return Dataset("toy", pair, pair, classes=(), source="made up", unit="row", labels=("a", "b"))


def of_text() -> Dataset:
    inputs, targets = torch.tensor([[1, 2, 3], [2, 1, 0]]), torch.tensor([[2, 3, 1], [1, -100, -100]])
    pair = TensorPair(inputs, targets)
    return Dataset("toy", pair, pair, classes=(), source="made up", unit="row", alphabet="abc")


def test_a_name_is_that_of_the_data() -> None:
    assert losses_of(load("digits"), "classification") is losses_of(load("digits"))
    assert losses_of(of_numbers(), "regression") is losses_of(of_numbers())


@pytest.mark.parametrize("name", [None, "multilabel"])
def test_the_loss_of_labels_is_torchs_own(name: str | None) -> None:
    data, model = of_labels(), nn.Linear(2, 2)
    found = losses_of(data, name)(model, *data.train)
    for one, x, y in zip(found, *data.train, strict=True):
        torch.testing.assert_close(one, nn.BCEWithLogitsLoss()(model(x), y))


def test_causal_is_the_mean_per_character() -> None:
    model, data = nn.Embedding(4, 4), of_text()
    whole, mean = text_loss(model, *data.train), losses_of(data, "causal")(model, *data.train)
    torch.testing.assert_close(mean, whole / torch.tensor([3.0, 1.0]))
    first = F.cross_entropy(model(data.train.inputs[0]), data.train.targets[0])
    torch.testing.assert_close(mean[0], first)


def test_class_weights_multiply_the_losses_of_their_class() -> None:
    data, model = load("digits"), nn.Linear(64, 10)
    x, y = data.train.inputs[:50].flatten(1), data.train.targets[:50]
    weighted = losses_of(data, None, {"3": 2.5, "7": 0.0})(model, x, y)
    plain = losses_of(data)(model, x, y)
    torch.testing.assert_close(weighted, plain * torch.tensor([{3: 2.5, 7: 0.0}.get(int(c), 1.0) for c in y]))
    assert losses_of(data, None, {}) is losses_of(data)


@pytest.mark.parametrize(
    ("data", "weights", "words"),
    [
        (load("digits"), {"ten": 2.0}, r"'ten' is not among the classes, 0, 1,"),
        (load("digits"), {str(c): 0.0 for c in range(10)}, "all 0"),
        (of_numbers(), {"0": 1.0}, "Remove"),
        (of_text(), {"a": 1.0}, "Remove"),
        (of_labels(), {"a": 1.0}, "Remove"),
    ],
)
def test_weights_of_what_is_no_class_are_refused(
    data: Dataset, weights: dict[str, float], words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        losses_of(data, None, weights)


def test_class_weights_are_read_and_wrong_ones_refused() -> None:
    read = parse_config(RUN + 'class_weights = { 3 = 2, "7" = 0.5 }\n', "run.toml").training.class_weights
    assert read == {"3": 2.0, "7": 0.5}
    with pytest.raises(InvalidInput, match=r"\[training\] class_weights"):
        parse_config(RUN + "class_weights = { 3 = -1.0 }\n", "run.toml")
    with pytest.raises(InvalidInput, match=r"\[training\] class_weights"):
        parse_config(RUN + 'class_weights = "balanced"\n', "run.toml")


@pytest.mark.parametrize(
    ("name", "fits"),
    [("regression", "classification"), ("causal", "classification")],
)
def test_another_loss_than_the_datas_is_refused(name: str, fits: str) -> None:
    with pytest.raises(InvalidInput, match=rf'\[training\] loss = "{name}".*classes.*loss = "{fits}"'):
        losses_of(load("digits"), name)


def test_the_key_is_read_and_a_wrong_one_refused() -> None:
    assert parse_config(RUN, "run.toml").training.loss is None
    assert parse_config(RUN + 'loss = "classification"\n', "run.toml").training.loss == "classification"
    with pytest.raises(InvalidInput, match=r"\[training\] loss = 'hinge': .*'classification'"):
        parse_config(RUN + 'loss = "hinge"\n', "run.toml")
