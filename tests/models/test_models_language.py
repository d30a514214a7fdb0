"""The window model looks back and never ahead, and as far as it says."""

from __future__ import annotations

import pytest
import torch

from tacit.datasets.text import Alphabet, token_pair
from tacit.errors import InvalidInput
from tacit.models import WindowModel, build
from tacit.runs.model import text_loss
from tacit.training import evaluate


def tokens(rows: int = 3, length: int = 9) -> torch.Tensor:
    return torch.randint(0, 5, (rows, length), generator=torch.Generator().manual_seed(0))


def test_a_token_reaches_the_next_places_and_no_other() -> None:
    model, before = WindowModel(5, context=3, embedding=4, hidden=8), tokens()
    after = before.clone()
    after[:, 4] = (before[:, 4] + 1) % 5
    moved = (model(before) != model(after)).any(dim=2)
    assert moved.tolist() == [[place in (4, 5, 6) for place in range(9)]] * 3


def test_one_window_is_the_last_place_of_a_record() -> None:
    model, x = WindowModel(5, context=4), tokens()
    assert torch.allclose(model(x)[:, 6], model.after(x[:, 3:7]), atol=1e-6)
    start = torch.cat([torch.zeros(3, 2, dtype=torch.int64), x[:, :2]], dim=1)
    assert torch.allclose(model(x)[:, 1], model.after(start), atol=1e-6)


def test_built_by_name_with_one_hidden_layer() -> None:
    model = build("window", input_shape=(9,), classes=5, hidden=[16])
    assert model(tokens()).shape == (3, 9, 5)
    with pytest.raises(InvalidInput, match="network 'window' must have one hidden layer"):
        build("window", input_shape=(9,), classes=5, hidden=[16, 16])


def test_loss_and_evaluation_are_those_of_a_loop_over_characters() -> None:
    alphabet, lines = Alphabet("abcd"), ["abca", "d", "bb"]
    model, (x, y) = WindowModel(5, context=3), token_pair(lines, alphabet, 6)
    total, right = 0.0, 0
    losses = []
    for line in lines:
        told, loss = [0, 0, 0], 0.0
        for token in [*alphabet.encode(line), 0]:
            log_p = torch.log_softmax(model.after(torch.tensor(told[-3:])), dim=0).detach()
            loss -= float(log_p[token])
            right += int(log_p.argmax()) == token
            told.append(token)
        losses.append(loss)
        total += loss
    assert text_loss(model, x, y).detach().tolist() == pytest.approx(losses, rel=1e-5)
    found = evaluate(model, x, y)
    assert (found.score, found.loss) == pytest.approx((right / 10, total / 10), rel=1e-5)
    assert (found.per_class, found.measure) == ((), "accuracy per character")
