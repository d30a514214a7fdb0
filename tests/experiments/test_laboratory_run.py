"""All attacks on a finished run, from its folder to the report, of small runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_files import run_file

from experiments.laboratory import recitation
from experiments.laboratory.__main__ import main
from tacit.runs import prepare

pytestmark = pytest.mark.usefixtures("no_pictures")
DIGITS = run_file(
    data='name = "digits"',
    model='name = "logistic"; normalise = true',
    privacy='epsilon = 3.0; unit = "image"; records = 1437',
    optimizer="learning_rate = 0.3; momentum = 0.9",
    training='batch_size = "full"; steps = 4',
)
TEXT = run_file(
    data='text = "lines.txt"; alphabet = " abcdefghijklmnopqrstuvwxyz0123456789"; longest = 12; '
    "test_fraction = 0.4",
    model='name = "window"; hidden = [16]',
    privacy='epsilon = 8.0; unit = "name"; records = 120; loss_bound = 50.0',
    optimizer='name = "adam"; learning_rate = 0.01',
    training="steps = 6",
    canaries='count = [6, 3]; copies = [1, 4]; prefix = "pin {name} "; length = 2',
)


def attacked(folder: Path, config: str, *options: str) -> dict[str, object]:
    (folder / "run.toml").write_text(config)
    assert prepare(folder / "run.toml", out=folder / "run").start() is not None
    with pytest.raises(SystemExit) as ended:
        main([str(folder / "run"), *options])
    assert not ended.value.code
    found: dict[str, object] = json.loads((folder / "run/private/laboratory/report.json").read_text())
    return found


def test_all_attacks_on_a_classifier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = attacked(tmp_path, DIGITS, "--shadows", "8", "--json")
    shown = json.loads(capsys.readouterr().out)
    assert [model["model"] for model in shown["membership"]["models"]] == ["with DP", "without DP"]
    attacks = [attack["attack"] for attack in shown["membership"]["models"][0]["attacks"]]
    assert attacks == ["loss threshold", "Shokri", "LiRA", "LiRA offline", "BaVarIA-t"]
    assert len(shown["exposed"]["most"]) == 8
    assert shown["exposed"]["most"][0]["picture"].startswith("data:image/png")
    assert [one["name"] for one in shown["inversion"]["classes"]] == [str(digit) for digit in range(10)]
    for key in ("mean", "without_dp", "with_dp"):
        assert all(one[key].startswith("data:image/png") for one in shown["inversion"]["classes"])
    text = (tmp_path / "run/private/laboratory/report.html").read_text()
    assert "Pictures reconstructed from the model" in text
    assert "Who is exposed most" in text
    assert data["run"] == shown["run"]


def test_what_a_text_model_recites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recitation, "_ANSWERS", 1)
    monkeypatch.setattr(recitation, "_ASKED", 20)
    lines = ["".join(chr(97 + (number * step) % 26) for step in range(1, 6)) for number in range(200)]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
    data = attacked(tmp_path, TEXT, "--shadows", "0")
    recited = data["recitation"]
    assert isinstance(recited, list)
    assert [one["model"] for one in recited] == ["with DP", "without DP"]
    for one in recited:
        assert {"members", "others"} == set(one["records"])
        assert 0 <= one["probe"]["after_repeating"] <= 1
    assert "What the model recites" in (tmp_path / "run/private/laboratory/report.html").read_text()
