"""Errors carry exit codes and say what, why and how."""

import pickle
from typing import Any

import pytest

from tacit import errors


def test_exit_codes() -> None:
    assert errors.InvalidInput.exit_code == 2
    assert errors.MissingExtra.exit_code == 2
    for refusal in (
        errors.PrivacyRefusal,
        errors.UnsupportedEvent,
        errors.UnsupportedModel,
        errors.BudgetExceeded,
    ):
        assert refusal.exit_code == 1


def test_missing_extra_names_the_command() -> None:
    assert "pip install -e '.[plots]'" in str(errors.MissingExtra("matplotlib", "plots", "a figure"))


@pytest.mark.parametrize("bad", [0, 1.5, "2", True, None])
def test_check_integer(bad: Any) -> None:
    assert errors.check_integer("steps", 3, low=1, high=3) == 3
    with pytest.raises(errors.InvalidInput, match=r"steps must be an integer >= 1; got"):
        errors.check_integer("steps", bad, low=1)
    with pytest.raises(errors.InvalidInput, match=r"\[1, 3\]; got 4"):
        errors.check_integer("steps", 4, low=1, high=3)


def test_check_real_shows_the_range() -> None:
    with pytest.raises(errors.InvalidInput, match=r"\(0, 1\); got 1.0"):
        errors.check_real("delta", 1, low=0, high=1, open_low=True, open_high=True)


def test_check_in() -> None:
    assert errors.check_in("engine", "fast", ("fast", "reference")) == "fast"
    with pytest.raises(errors.InvalidInput, match="fast, reference"):
        errors.check_in("engine", "quick", ("fast", "reference"))


def test_a_face_writes_the_arguments_of_an_error_in_its_own_way() -> None:
    def in_shell(name: str, value: str | None) -> str:
        return f"--{name.replace('_', '-')}" + ("" if value is None else f" {value}")

    with pytest.raises(errors.InvalidInput) as caught:
        raise errors.InvalidInput(
            ": 9 is more than `batch_size`",
            argument="largest_batch",
            value=9,
            fix="Say `batch_size=9`, or `a`.",
        )
    assert (caught.value.argument, caught.value.value) == ("largest_batch", 9)
    said = "--largest-batch: 9 is more than --batch-size; got 9. Say --batch-size 9, or --a."
    caught.value.spelling = in_shell
    assert str(caught.value) == said
    assert str(pickle.loads(pickle.dumps(errors.InvalidInput("must be so", argument="a")))) == "a must be so."


def test_plain_text_stays_as_it_is() -> None:
    assert str(errors.InvalidInput("take `this`, not `that`.")) == "take `this`, not `that`."
