"""The search for what to train of a public language model, on a model and reviews of next to nothing."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import fine_tuning
from experiments.fine_tuning import Tuning
from tacit.errors import InvalidInput

pytest.importorskip("transformers")
pytest.importorskip("peft")
sys.path.append(str(Path(__file__).parents[1] / "pretrained"))
sys.path.append(str(Path(__file__).parents[1] / "runs"))


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """140 reviews of some bytes, and a BERT that is 8 wide."""
    from tiny_models import write_bert

    folder = write_bert(tmp_path / "bert")
    monkeypatch.setattr(fine_tuning, "minilm", lambda: folder)
    texts = [("good " if i % 2 else "bad ") * (1 + i % 3) for i in range(140)]
    monkeypatch.setattr(fine_tuning, "texts_of_imdb", lambda: (texts, [i % 2 for i in range(140)]))
    for name, value in {"VALIDATION": 60, "TEST": 100, "PART": 20, "KEPT": tmp_path / "kept"}.items():
        monkeypatch.setattr(fine_tuning, name, value)


def short(part: str, **changes: Any) -> Tuning:
    (found,) = fine_tuning.quick([Tuning(part, **changes)])
    return found


@pytest.mark.parametrize(
    ("tuning", "trained"),
    [
        (Tuning("head", 0), 0),
        (Tuning("bias", 1), 4 * 8 + 16 + 8 + 2 * 8),
        (Tuning("lora", 1, 2), 2 * 2 * (8 + 8)),
        (Tuning("full", 2), 2 * (4 * 8 * 8 + 2 * 8 * 16 + 4 * 8 + 16 + 8 + 4 * 8)),
    ],
)
def test_each_part_trains_its_weights_alone(tuning: Tuning, trained: int) -> None:
    model = fine_tuning.model_of(tuning)
    body = sum(p.numel() for p in model.layers.parameters() if p.requires_grad)
    assert body == trained
    assert all(p.requires_grad for p in model.head.parameters())


def test_kept_states_and_upper_layers_give_what_the_whole_model_gives() -> None:
    texts, _ = fine_tuning.texts_of_imdb()
    kept = fine_tuning.reviews(1, 12, 0, 30)
    means = fine_tuning.reviews(0, 12, 0, 30)
    model = fine_tuning.model_of(Tuning("full", 1))
    states = torch.from_numpy(kept.states).float()
    there = torch.arange(12) < kept.lengths[:, None]
    last = model.layers[0](states, attention_mask=there[:, None, None, :])
    mean = (last * there[..., None]).sum(1) / there.sum(1, keepdim=True)
    torch.testing.assert_close(mean, torch.from_numpy(means.states[:, 0]).float(), rtol=0.01, atol=0.01)
    assert kept.lengths.tolist() == [min(12, len(text) + 2) for text in texts[:30]]
    assert {path.name for path in fine_tuning.KEPT.iterdir()} == {
        f"{layers}-12-{start}.npz" for layers in (0, 1) for start in (0, 20)
    }


def test_a_search_goes_on_and_the_final_rows_have_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    candidates = (Tuning("head", 0, batch_size=None), Tuning("lora", 2, 1), Tuning("full", 2, simulated=256))
    monkeypatch.setattr(fine_tuning, "CANDIDATES", candidates)
    monkeypatch.setattr(fine_tuning, "CHOSEN", candidates[1:])
    fine_tuning.main(["--quick", "--out", str(tmp_path)])
    found = (tmp_path / "searches" / "fine-tuning.jsonl").read_text().splitlines()
    assert [json.loads(line)["settings"]["part"] for line in found] == ["head", "lora", "full"]
    assert len(capsys.readouterr().out.splitlines()) == 3

    def broken(*_: object) -> None:
        raise AssertionError("a try was made twice")

    monkeypatch.setattr(fine_tuning, "fit", broken)
    fine_tuning.main(["--quick", "--out", str(tmp_path)])
    monkeypatch.undo()


@pytest.mark.thorough(instead="test_a_search_goes_on_and_the_final_rows_have_the_machine")
def test_final_rows(tmp_path: Path) -> None:
    rows = fine_tuning.final([short("lora", rank=1), short("full", simulated=9)], 2, 40, tmp_path)
    saved = json.loads((tmp_path / "fine-tuning.json").read_text())
    assert all((saved["machine"]["cores"], saved["versions"]["torch"], saved["date"]))
    assert [row.model for row in rows] == ["MiniLM, lora", "MiniLM, full, simulated"]
    assert rows[0].seeds == 2
    assert 0 < rows[0].epsilon <= 8.0
    assert rows[0].details["tuning"] == dataclasses.asdict(short("lora", rank=1))


def test_a_simulation_has_the_noise_of_its_plan_on_each_mean() -> None:
    real = Tuning("full", batch_size=1000, records=6000)
    simulated = dataclasses.replace(real, simulated=100).plan()
    assert simulated.expected_batch_size == 100
    noise = real.plan().noise_multiplier / 1000
    assert simulated.noise_multiplier / 100 == pytest.approx(noise, rel=1e-4)


def test_a_package_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidInput, match="'no_such_package' is not installed"):
        fine_tuning.package("no_such_package")
