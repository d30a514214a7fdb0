"""The page on language models is one story: its blocks run in order, on little text or on the real one."""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
from pathlib import Path

import pytest

from tacit.cli.app import run as tacit

PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "language-models.md"
SMALLER = (
    ("n_embd=320, n_layer=4, n_head=5", "n_embd=8, n_layer=1, n_head=2"),
    ('sampling = "truncated-poisson"', 'sampling = "full"'),
    ("largest_batch", "# largest_batch"),
    ("\nbatch_size = 256\n", '\nbatch_size = "full"\n'),
    ("\nbatch_size = 512\n", '\nbatch_size = "full"\n'),
    ("steps = 100", "steps = 2"),
    ("steps = 60", "steps = 2"),
)


def follow(page: str) -> None:
    """Run the blocks in the current folder: each of TOML is a file of the command after it."""
    configs = iter(("plays.toml", "names.toml"))
    shared: dict[str, object] = {"__name__": "__main__"}
    for kind, block in re.findall(r"^```(sh|python|toml)\n(.*?)^```$", page, flags=re.M | re.DOTALL):
        if kind == "python":
            exec(compile(block, "<page>", "exec"), shared)
        elif kind == "toml":
            Path(next(configs)).write_text(block, encoding="utf-8")
        else:
            program, *arguments = shlex.split(block)
            assert program in ("tacit", "pip")
            if program == "tacit":
                assert tacit(arguments) == 0
    assert next(configs, None) is None


def losses(run: str) -> tuple[float, float]:
    figures = json.loads(Path(run, "evaluation.json").read_text())
    return figures["loss"], figures["loss_of_a_constant"]


@pytest.mark.usefixtures("no_pictures")
def test_the_page_runs_on_little_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    with gzip.open("tinyshakespeare.txt.gz", "wt") as file:
        file.write("\n\n".join(f"FIRST:\nSpeech {number} of many." for number in range(600)))
    with gzip.open("names.txt.gz", "wt") as file:
        file.write("\n".join(f"name{number}" for number in range(80)))
    page = PAGE.read_text(encoding="utf-8")
    for there, here in SMALLER:
        assert there in page
        page = page.replace(there, here)
    follow(page)
    assert Path("runs/names/adapter_model.safetensors").exists()


@pytest.mark.thorough(instead="test_the_page_runs_on_little_text")
@pytest.mark.filterwarnings("default")
def test_the_page_reaches_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of an hour on one core: the losses of the page, far below the entropy of single bytes."""
    data = Path(os.environ.get("TACIT_DATA", "nowhere")).absolute()
    if not (data / "tinyshakespeare.txt.gz").exists() or not (data / "names.txt.gz").exists():
        pytest.skip("TACIT_DATA names no folder with tinyshakespeare.txt.gz and names.txt.gz")
    monkeypatch.setenv("TACIT_DATA", str(data))
    monkeypatch.chdir(tmp_path)
    follow(PAGE.read_text(encoding="utf-8"))
    for run, most in (("runs/plays", 0.85), ("runs/names", 0.95)):
        loss, unigram = losses(run)
        assert loss < most * unigram, run
