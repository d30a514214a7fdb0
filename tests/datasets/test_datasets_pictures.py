"""Folders of pictures: their own split, a split by picture, and faults."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tacit.datasets import load_image_folder
from tacit.errors import InvalidInput

DATA = Path(os.environ.get("TACIT_DATA", "/nowhere"))
CLASSES = ("a", "b")


def pixels(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


# Folders of pictures


def save_pictures(root: Path, count: int = 6) -> None:
    for label, level in (("a", 0), ("b", 255)):
        (root / label).mkdir(parents=True)
        for number in range(count):
            colour = (level, abs(level - number), level)
            Image.new("RGB", (10 + number, 7), colour).save(root / label / f"{number}.png")


def test_image_folder_with_its_own_split(tmp_path: Path) -> None:
    save_pictures(tmp_path / "train")
    save_pictures(tmp_path / "test", 2)
    (tmp_path / "train" / "a" / ".hidden").write_text("not a picture")
    seen: list[tuple[int, int]] = []
    data = load_image_folder(
        tmp_path, size=(5, 4), classes=CLASSES, progress=lambda done, total: seen.append((done, total))
    )
    assert data.train.inputs.shape == (12, 3, 5, 4)
    assert data.train.targets.tolist() == [0] * 6 + [1] * 6
    assert data.test.targets.tolist() == [0, 0, 1, 1]
    assert data.train.inputs[:6, 0].max() == 0.0
    assert data.train.inputs[6:, 0].min() == 1.0
    assert seen[-1] == (16, 16)


def test_image_folder_split_by_picture(tmp_path: Path) -> None:
    save_pictures(tmp_path, 20)
    data = load_image_folder(tmp_path, size=(4, 4), classes=CLASSES, colours=1, test_fraction=0.3)
    assert data.input_shape == (1, 4, 4)
    assert len(data.train.inputs) + len(data.test.inputs) == 40
    trained = {tuple(row) for row in data.train.inputs.flatten(1).tolist()}
    (tmp_path / "a" / "0.png").unlink()
    fewer = load_image_folder(tmp_path, size=(4, 4), classes=CLASSES, colours=1, test_fraction=0.3)
    assert len(trained ^ {tuple(row) for row in fewer.train.inputs.flatten(1).tolist()}) <= 1


def test_image_folder_with_faults(tmp_path: Path) -> None:
    save_pictures(tmp_path)

    def read(classes: tuple[str, ...] = CLASSES, fraction: float | None = 0.3, colours: int = 3) -> None:
        load_image_folder(tmp_path, size=(4, 4), classes=classes, test_fraction=fraction, colours=colours)

    with pytest.raises(InvalidInput, match="lacks class folders: c"):
        read(("a", "b", "c"))
    with pytest.raises(InvalidInput, match="has 1 folders that are no declared class"):
        read(("a",))
    with pytest.raises(InvalidInput, match="test_fraction must be given"):
        read(fraction=None)
    with pytest.raises(InvalidInput, match="colours must be 1 or 3"):
        read(colours=2)
    with pytest.raises(InvalidInput, match="no picture is left for testing"):
        read(fraction=1e-9)
    (tmp_path / "b" / "torn.png").write_bytes((tmp_path / "b" / "1.png").read_bytes()[:40])
    with pytest.raises(InvalidInput, match=r"cannot read picture \d+ of .*/b, in the order of paths: "):
        read()
    empty = tmp_path / "empty"
    for label in CLASSES:
        (empty / label).mkdir(parents=True)
    with pytest.raises(InvalidInput, match="contain no images"):
        load_image_folder(empty, size=(4, 4), classes=CLASSES, test_fraction=0.5)
    with pytest.raises(InvalidInput, match="there is no folder"):
        load_image_folder(tmp_path / "absent", size=(4, 4), classes=CLASSES, test_fraction=0.5)
