"""``tacit init`` on a folder of pictures: what is written, that it trains, and what is refused how."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from shell import Shell

from tacit.cli.app import run
from tacit.columns.sections import BLANK
from tacit.runs.config import read_config

PROMISE = (
    "--unit", "scan", "--adjacency", "add-remove", "--records", "200", "--epsilon", "8", "--delta", "1e-3",
)  # fmt: skip


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_pictures(root: str, count: int = 3, size: tuple[int, int] = (12, 10), mode: str = "L") -> None:
    chance = np.random.default_rng(0)
    for label, level in (("dark", 60), ("light", 190)):
        folder = Path(root) / label
        folder.mkdir(parents=True)
        for number in range(count):
            pixels = chance.integers(level - 50, level + 50, size, dtype=np.uint8)
            Image.fromarray(pixels).convert(mode).save(folder / f"{number}.png")


def test_the_file_has_what_the_folder_says_and_blanks_for_the_promise(
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_pictures("scans")
    assert run(["init", "scans"]) == 0
    written = tomllib.loads(Path("scans.toml").read_text())
    assert written["data"] == {
        "images": "scans", "classes": ["dark", "light"], "size": [12, 10], "colours": 1,
        "features": "pictures", "test_fraction": 0.2,
    }  # fmt: skip
    assert {key for key, value in written["privacy"].items() if value == BLANK} == {
        "epsilon", "delta", "unit", "adjacency", "records",
    }  # fmt: skip
    said = " ".join(capsys.readouterr().out.split())
    assert "2 classes, images of 12 by 10 pixels, grey" in said
    assert "fill in 5 public facts, never from the data" in said


@pytest.mark.parametrize(("size", "proposed"), [((300, 150), [96, 48]), ((5, 40), [8, 40])])
def test_large_and_tiny_pictures_are_brought_to_a_size_that_has_features(
    size: tuple[int, int], proposed: list[int]
) -> None:
    make_pictures("photos/train", size=size, mode="RGB")
    make_pictures("photos/test", size=size, mode="RGB")
    assert run(["init", "photos", *PROMISE]) == 0
    data = read_config(Path("photos.toml")).data
    assert (data.size, data.colours, data.test_fraction) == (proposed, 3, None)


@pytest.mark.usefixtures("no_pictures")
def test_what_is_written_trains_and_predicts(capsys: pytest.CaptureFixture[str]) -> None:
    make_pictures("scans", count=130)
    assert run(["init", "scans", *PROMISE, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["left_to_fill_in"] == []
    assert run(["train", "scans.toml", "--out", "first"]) == 0
    report = json.loads(Path("first/evaluation.json").read_text())
    assert report["score"] > 0.7  # of about 50 pictures; one half by chance
    assert run(["predict", "first", "scans", "--out", "found.csv"]) == 0
    assert len(Path("found.csv").read_text().splitlines()) == 261


def test_refusals_say_what_to_do(capsys: pytest.CaptureFixture[str], shell: Shell) -> None:
    make_pictures("scans")
    make_pictures("ready/train")
    make_pictures("ready/test")
    Path("empty").mkdir()
    Path("one/only").mkdir(parents=True)
    for name in ("a", "b"):
        (Path("words") / name).mkdir(parents=True)
        (Path("words") / name / "x.txt").write_text("a secret")
    for arguments, words in (
        (["scans", "--target", "x", "--policy"], "do not apply (--policy, --target)"),
        (["scans", "--missing", "refuse"], "do not apply (--missing"),
        (["ready", "--test-fraction", "0.3"], "already has test images"),
        (["empty"], "has 0 folders of images"),
        (["one"], "needs one per class"),
        (["words"], "image 1 of words/a, sorted by path, is not an image: "),
        (["scans", "--records", "10", "--delta", "0.2"], "delta = 0.2 is not below 1/records"),
    ):
        assert run(["init", *arguments]) in (1, 2)
        err = " ".join(capsys.readouterr().err.split())
        assert words in err
        assert "secret" not in err
        assert "x.txt" not in err  # a file's name may be a person's
    assert not list(Path().glob("*.toml"))
    assert run(["init", "scans"]) == 0
    assert "never overwritten" in shell.err("init", "scans", code=2)
