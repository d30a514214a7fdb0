"""The page on GPUs and several processes runs, and its figures are those that were measured."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pages import ROOT, blocks_of, comments_of, printed, text_of

PAGE = "gpu-and-processes.md"


def test_the_program_for_a_gpu_prints_what_it_says() -> None:
    code = blocks_of(PAGE)[0]
    assert printed([code])[0].splitlines() == comments_of(code)


@pytest.mark.thorough(
    instead="training/test_training_shards.py::test_a_run_is_that_of_one_process_and_a_resumed_run_is_the_same_to_the_last_bit"
)
def test_the_program_for_sharded_models_runs_in_two_processes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(blocks_of(PAGE)[1])
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    told = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert told.returncode == 0, told.stderr
    (line,) = [line for line in told.stdout.splitlines() if line]
    assert f"`{line}`" in text_of(PAGE)
    assert torch.load(tmp_path / "model.pt")["0.weight"].shape == (64, 20)
    assert len([*(tmp_path / "private").iterdir()]) == 2


def test_the_figures_are_those_that_were_measured() -> None:
    measured = json.loads((ROOT / "benchmarks" / "results" / "step_gpu.json").read_text())
    assert measured["date"] in text_of(PAGE)
    rows = re.findall(r"^\| (GPT-2|ResNet-50) .*? \| (\d+) \| (.*) \|$", text_of(PAGE), re.MULTILINE)
    assert len(rows) == 4
    names = {
        ("GPT-2", "16"): "GPT-2 small",
        ("GPT-2", "4"): "GPT-2 small, 4 records",
        ("ResNet-50", "128"): "ResNet-50",
        ("ResNet-50", "32"): "ResNet-50, 32 records",
    }
    for model, records, cells in rows:
        of = [t for t in measured["timings"] if t["workload"] == names[model, records] and t["ratio"]]
        ratio = {timing["engine"]: timing["ratio"] for timing in of}
        peaks = {m["engine"]: m["peak"] for m in measured["memory"] if m["workload"] == of[0]["workload"]}
        expected = [
            f"{of[0]['milliseconds']:.1f}",
            f"{ratio['Tacit']:.2f}",
            f"{peaks['Tacit'] / peaks['plain PyTorch']:.2f}",
            f"{min(value for engine, value in ratio.items() if engine.startswith('Opacus')):.2f}",
            f"{ratio['torch.func']:.2f}" if "torch.func" in ratio else "–",
        ]
        assert cells.split(" | ") == expected
