"""Lines of text as numbers and back, each line alone; bad files are refused with the line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.datasets import load_text
from tacit.datasets.text import END, PADDING, Alphabet, stream_lines, token_pair
from tacit.errors import InvalidInput

LETTERS = "abc xé9"
LINES = ["abc", "é x", "9", "cab", "a a", "xx", "bé", "ccc", "9 9", "b"]


@given(st.lists(st.text(LETTERS, max_size=8), min_size=1, max_size=5))
def test_lines_come_back_and_targets_follow_inputs(lines: list[str]) -> None:
    alphabet = Alphabet(LETTERS)
    inputs, targets = token_pair(lines, alphabet, 8)
    assert inputs.shape == targets.shape == (len(lines), 9)
    for line, x, y in zip(lines, inputs.tolist(), targets.tolist(), strict=True):
        assert alphabet.decode(y[: len(line)]) == line
        assert x[0] == END
        assert y[len(line)] == END
        assert x[1 : len(line) + 1] == y[: len(line)]  # the model reads what it has just been asked for
        assert set(y[len(line) + 1 :]) <= {PADDING}


def write(path: Path, lines: list[str]) -> Path:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


def test_one_line_more_moves_no_other(tmp_path: Path) -> None:
    def split(lines: list[str]) -> tuple[set[str], set[str]]:
        path = write(tmp_path / "lines.txt", lines)
        data = load_text(path, alphabet=LETTERS, longest=5, test_fraction=0.4)
        train, test = (
            {"".join(map(chr, row[row > 0].tolist())) for row in pair.targets}
            for pair in (data.train, data.test)
        )
        return train, test

    (train, test), (more_train, more_test) = split(LINES), split([*LINES, "cc c"])
    assert train
    assert test
    assert train <= more_train
    assert test <= more_test
    assert len(more_train | more_test) == len(train | test) + 1


def test_files_of_all_kinds_give_the_same_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for data in (b"ab\nc a\n", b"ab\nc a", b"ab\r\nc a\r\n", b"\xef\xbb\xbfab\nc a\n"):
        path.write_bytes(data)
        assert [*stream_lines(path)] == ["ab", "c a"]
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"ab\nc a\n"))
    assert [*stream_lines(tmp_path / "a.txt.gz")] == ["ab", "c a"]


def test_test_records_from_a_file_of_their_own(tmp_path: Path) -> None:
    path, others = write(tmp_path / "a.txt", LINES), write(tmp_path / "b.txt", ["abc", "x"])
    data = load_text(path, alphabet=LETTERS, longest=5, test_path=others, unit="diary")
    assert (len(data.train.inputs), len(data.test.inputs)) == (10, 2)
    assert (data.unit, data.alphabet, data.classes, data.input_shape) == ("diary", LETTERS, (), (6,))
    with pytest.raises(InvalidInput, match="exactly one of test_fraction and test_path"):
        load_text(path, alphabet=LETTERS, longest=5)
    with pytest.raises(InvalidInput, match="no record is left for testing among 10 records"):
        load_text(path, alphabet=LETTERS, longest=5, test_fraction=1e-9)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"ab\n\nc\n", r"line 2 .* is empty"),
        (b"ab\nabcabc\n", r"line 2 .* has more characters than longest = 5"),
        (b"ab\na!c\n", r"character 2 of line 2 .* is not in the alphabet"),
        (b"ab\nc\n\xff\xfe\n", r"not UTF-8 in line 3"),
        (b"", "is empty"),
    ],
)
def test_bad_lines_are_refused_by_number(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    with pytest.raises(InvalidInput, match=words):
        load_text(path, alphabet=LETTERS, longest=5, test_fraction=0.5)


def test_a_missing_or_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(b"no gzip")
    for name in ("a.gz", "nowhere.txt"):
        with pytest.raises(InvalidInput, match="cannot read"):
            list(stream_lines(tmp_path / name))


@pytest.mark.parametrize("characters", ["", "a", "aba", "a\nb"])
def test_bad_alphabets_are_refused(characters: str) -> None:
    with pytest.raises(InvalidInput, match="alphabet must have at least 2 characters"):
        Alphabet(characters)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidInput, match="record 0 has more characters than longest = 2"):
        token_pair(["abc"], Alphabet("abc"), 2)
    with pytest.raises(InvalidInput, match="character 2 of the text is not in the alphabet"):
        Alphabet("abc").encode("ad")


def test_a_data_set_of_text_is_checked() -> None:
    from tacit.datasets import Dataset, TensorPair

    good = token_pair(["ab"], Alphabet("ab"), 3)
    for bad in (
        TensorPair(good.inputs.float(), good.targets),
        TensorPair(good.inputs + 1, good.targets),
        TensorPair(good.inputs[:, 1:], good.targets),
        TensorPair(good.inputs, torch.full_like(good.targets, 3)),
    ):
        with pytest.raises(InvalidInput, match=r"x\.test must be int64 tokens"):
            Dataset("x", good, bad, (), "made up", "line", alphabet="ab")
