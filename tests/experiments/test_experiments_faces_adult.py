"""The AT&T faces and Adult: from made-up files, and the real ones where they are."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from experiments.adult import load_adult
from experiments.faces import load_faces
from tacit.errors import InvalidInput

DATA = Path(os.environ.get("TACIT_DATA", "."))
ROW = "39,State-gov,77516,Bachelors,13,{},Adm-clerical,Not-in-family,White,Male,2174,0,40,{},{}"
HEADER = (
    "age,type_employer,fnlwgt,education,education_num,marital,occupation,relationship,race,sex,"
    "capital_gain,capital_loss,hr_per_week,country,income"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("TACIT_DATA", raising=False)
    return tmp_path


def made_up() -> tuple[
    np.ndarray[tuple[int, ...], np.dtype[np.uint8]], np.ndarray[tuple[int, ...], np.dtype[np.int64]]
]:
    """Person i's picture j is grey with i + 100 j / 10, so that a mix-up shows."""
    people, number = np.divmod(np.arange(400), 10)
    x = np.broadcast_to((people + 10 * number)[:, None, None], (400, 112, 92))
    return x.astype(np.uint8), people


def test_faces_by_person(folder: Path) -> None:
    x, y = made_up()
    order = np.random.default_rng(0).permutation(400)
    np.savez(folder / "att_faces.npz", x=x[order], y=y[order])
    faces = load_faces(folder)
    assert faces.shape == (40, 10, 56, 46)
    people = (255 * faces[:, :, 0, 0]).round().long() % 10
    assert torch.equal(people, (torch.arange(40) % 10)[:, None].expand(40, 10))


def test_the_published_archive_reads_the_same(folder: Path) -> None:
    x, _ = made_up()
    with zipfile.ZipFile(folder / "att_faces.zip", "w") as archive:
        for i, picture in enumerate(x):
            raw = io.BytesIO()
            Image.fromarray(picture).save(raw, format="PPM")
            archive.writestr(f"orl_faces/s{i // 10 + 1}/{i % 10 + 1}.pgm", raw.getvalue())
    expected = torch.from_numpy(x.reshape(40, 10, 112, 92)[:, :, ::4, ::4].copy()).float() / 255.0
    torch.testing.assert_close(load_faces(folder, shrink=4), expected)


def test_bad_face_files_are_refused(folder: Path) -> None:
    with pytest.raises(InvalidInput, match="facedatabase"):
        load_faces(folder)
    x, _ = made_up()
    with pytest.raises(InvalidInput, match="1, 2 or 4"):
        load_faces(folder, shrink=3)
    np.savez(folder / "att_faces.npz", x=x, y=np.zeros(400, dtype=np.int64))
    with pytest.raises(InvalidInput, match="10 pictures of each"):
        load_faces(folder)
    (folder / "att_faces.npz").write_bytes(b"no zip")
    with pytest.raises(InvalidInput, match="cannot read"):
        load_faces(folder)
    (folder / "att_faces.npz").unlink()
    with zipfile.ZipFile(folder / "att_faces.zip", "w") as archive:
        archive.writestr("s1/1.pgm", b"no picture")
    with pytest.raises(InvalidInput, match="archive of the AT&T faces"):
        load_faces(folder)


def test_adult_is_encoded_by_its_public_schema(folder: Path) -> None:
    rows = [ROW.format("Divorced", "Peru", "<=50K"), ROW.format("Widowed", "United-States", ">50K")]
    (folder / "adult.csv").write_text("\n".join([HEADER, *(rows * 20)]) + "\n")
    with pytest.raises(InvalidInput, match="test_fraction"):
        load_adult(folder, test_fraction=1e-9)
    data = load_adult(folder, test_fraction=0.5)
    inputs = torch.cat([data.train.inputs, data.test.inputs])
    assert data.unit == "person"
    assert data.classes == ("<=50K", ">50K")
    targets = torch.cat([data.train.targets, data.test.targets])
    at = data.features.index
    assert torch.equal(inputs[:, at("marital=Widowed")].long(), targets)
    assert torch.equal(inputs[:, at("country=other")].long(), 1 - targets)
    assert inputs[0, at("education_num")].item() == pytest.approx(2 * 12 / 15 - 1)


def test_adult_that_is_nowhere_is_said_so(folder: Path) -> None:
    with pytest.raises(InvalidInput, match=r"uci\.edu"):
        load_adult(folder)


@pytest.mark.skipif(not (DATA / "adult.csv.gz").exists(), reason="adult.csv.gz is not in TACIT_DATA")
def test_the_real_adult() -> None:
    data = load_adult(DATA)
    assert len(data.train.inputs) + len(data.test.inputs) == 30162
    assert 0.24 < data.train.targets.float().mean().item() < 0.26


@pytest.mark.skipif(not (DATA / "att_faces.npz").exists(), reason="att_faces.npz is not in TACIT_DATA")
def test_the_real_faces() -> None:
    faces = load_faces(DATA)
    own = (faces[:, :5].mean(1) - faces[:, 5:].mean(1)).square().mean()
    other = (faces[:, :5].mean(1) - faces[:, 5:].mean(1).roll(1, 0)).square().mean()
    assert float(own) < 0.3 * float(other), "pictures of one person are alike"
