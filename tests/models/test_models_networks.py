"""The reference networks: published sizes, bounded activations, a registry that refuses misfits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tacit import models
from tacit.errors import InvalidInput
from tacit.models import TemperedSigmoid, build
from tacit.models.networks import (
    GroupNormalize,
    activation_layer,
    group_normalize,
    names,
    papernot_cifar_cnn,
    papernot_mnist_cnn,
)


@pytest.fixture(autouse=True)
def fixed_draws() -> None:
    torch.manual_seed(0)


def parameters(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def test_public_names_can_be_imported() -> None:
    assert len(set(models.__all__)) == len(models.__all__)
    assert all(getattr(models, name) is not None for name in models.__all__)


def test_tempered_sigmoid_is_tanh_at_2_2_1() -> None:
    x = torch.linspace(-4, 4, 101, dtype=torch.float64)
    out = TemperedSigmoid(scale=2.0, inverse_temperature=2.0, offset=1.0)(x)
    assert torch.allclose(out, torch.tanh(x), atol=1e-12)


def test_tempered_sigmoid_stays_within_its_bounds() -> None:
    layer = TemperedSigmoid(scale=1.58, inverse_temperature=3.0, offset=0.71)
    out = layer(torch.tensor([-1e6, 0.0, 1e6]))
    assert torch.allclose(out, torch.tensor([-0.71, 0.08, 0.87]))


@pytest.mark.parametrize(("scale", "inverse_temperature"), [(0.0, 1.0), (1.0, -1.0), (float("nan"), 1.0)])
def test_tempered_sigmoid_refuses_bad_constants(scale: float, inverse_temperature: float) -> None:
    with pytest.raises(InvalidInput, match=r"\(0, inf\)"):
        TemperedSigmoid(scale=scale, inverse_temperature=inverse_temperature, offset=0.0)


def test_activations_by_name() -> None:
    x = torch.tensor([-1.0, 2.0])
    assert activation_layer("relu")(x).tolist() == [0.0, 2.0]
    assert torch.allclose(activation_layer("tempered-sigmoid")(x), activation_layer("tanh")(x))
    with pytest.raises(InvalidInput, match="relu, tanh, tempered-sigmoid"):
        activation_layer("gelu")


@pytest.mark.parametrize("activation", ["relu", "tanh", "tempered-sigmoid"])
def test_published_sizes(activation: str) -> None:
    assert parameters(papernot_mnist_cnn(activation=activation)) == 26_010
    assert parameters(papernot_cifar_cnn(activation=activation)) == 550_570


@pytest.mark.parametrize(
    ("name", "shape", "count"),
    [
        ("logistic", (1, 8, 8), 650),
        ("mlp", (1, 8, 8), 64 * 128 + 128 + 1290),
        ("papernot-mnist-cnn", (1, 28, 28), 26_010),
        ("papernot-cifar-cnn", (3, 32, 32), 550_570),
        ("scattering-linear", (81, 7, 7), 39_700),
        ("scattering-linear", (243, 8, 8), 155_530),
        ("scattering-cnn", (81, 7, 7), 81 * 16 * 9 + 16 + 16 * 32 * 9 + 32 + 512 * 32 + 32 + 330),
        ("scattering-cnn", (243, 8, 8), 187_210),
        ("abadi-mnist-mlp", (60,), 71_010),
        ("abadi-cifar-cnn", (3, 24, 24), 1_144_138),
        ("abadi-cifar-cnn", (3, 32, 32), 1_144_138 + 64 * 384 * (64 - 36)),
    ],
)
def test_build(name: str, shape: tuple[int, ...], count: int) -> None:
    model = build(name, input_shape=shape, classes=10)
    assert parameters(model) == count
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.1)  # a linear model starts at zero
    batch = torch.rand(3, *shape)
    logits = model(batch)
    assert logits.shape == (3, 10)
    # No layer looks at another record.
    assert torch.allclose(model(batch[1:2]), logits[1:2], rtol=1e-3, atol=1e-4)


def test_linear_models_start_at_zero() -> None:
    for name, shape in (("logistic", (64,)), ("scattering-linear", (81, 7, 7))):
        model = build(name, input_shape=shape, classes=10)
        assert not any(bool(weight.any()) for weight in model.parameters())


def test_logistic_normalises_each_record_by_itself() -> None:
    model = build("logistic", input_shape=(1, 8, 8), classes=2, normalise=True)
    assert parameters(model) == 130
    nn.init.normal_(next(model.parameters()))
    batch = torch.rand(3, 1, 8, 8)
    assert torch.allclose(model(batch), model(5 * batch + 3), atol=1e-3)
    assert torch.allclose(model(batch)[1:2], model(batch[1:2]), atol=1e-4)


def test_build_reaches_every_name_and_refuses_others() -> None:
    assert len(names()) == 11
    with pytest.raises(InvalidInput, match=r"logistic, mlp, papernot-mnist-cnn.*got 'resnet'"):
        build("resnet", input_shape=(3, 32, 32), classes=10)


def test_build_passes_options_on() -> None:
    model = build(
        "mlp",
        input_shape=(64,),
        classes=4,
        hidden=[16, 8],
        activation="tempered-sigmoid",
        temper=[1.58, 3.0, 0.71],
    )
    assert parameters(model) == 64 * 16 + 16 + 16 * 8 + 8 + 8 * 4 + 4
    assert [layer.scale for layer in model.modules() if isinstance(layer, TemperedSigmoid)] == [1.58, 1.58]
    linear = build("scattering-linear", input_shape=(81, 7, 7), classes=10, groups=9)
    assert [layer.groups for layer in linear.modules() if isinstance(layer, GroupNormalize)] == [9]


def test_build_refuses_options_the_network_does_not_have() -> None:
    with pytest.raises(InvalidInput, match=r"'logistic' has no option 'activation'; it has normalise"):
        build("logistic", input_shape=(64,), classes=10, activation="relu")
    with pytest.raises(InvalidInput, match=r"no option 'hidden'; it has groups, activation, temper"):
        build("scattering-cnn", input_shape=(81, 7, 7), classes=10, hidden=[3])
    with pytest.raises(InvalidInput, match="needs activation 'tempered-sigmoid'"):
        build("mlp", input_shape=(64,), classes=10, temper=[2, 2, 1])


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("papernot-mnist-cnn", (1, 32, 32), "28x28"),
        ("papernot-cifar-cnn", (3, 28, 28), "32x32"),
        ("scattering-cnn", (81, 9, 9), "7, 7"),
        ("scattering-linear", (80, 7, 7), "groups must divide"),
        ("scattering-linear", (64,), r"\(channels, height, width\)"),
        ("abadi-cifar-cnn", (3, 24, 32), "square"),
        ("abadi-cifar-cnn", (3, 30, 30), "multiple of 4"),
        ("logistic", (0,), "input_shape"),
    ],
)
def test_build_refuses_shapes_that_do_not_fit(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        build(name, input_shape=shape, classes=10)


def test_group_normalize_has_mean_0_and_variance_1_per_group() -> None:
    features = torch.randn(4, 12, 5, 5) * 3 + 2
    groups = group_normalize(features, groups=3).reshape(4, 3, -1)
    assert torch.allclose(groups.mean(2), torch.zeros(4, 3), atol=1e-5)
    assert torch.allclose(groups.var(2, unbiased=False), torch.ones(4, 3), atol=1e-3)
    with pytest.raises(InvalidInput, match="groups=5"):
        group_normalize(features, groups=5)


def test_group_normalize_sees_one_record_at_a_time() -> None:
    features = torch.randn(4, 12, 5, 5)
    changed = features.clone()
    changed[0] *= 100
    assert torch.equal(group_normalize(features, groups=3)[1:], group_normalize(changed, groups=3)[1:])
