"""A public model goes wherever other networks go: into programs, and into the private engine."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tiny_models import write_bert, write_convnext, write_gpt2, write_vit
from torch import Tensor, nn

from tacit import Plan, PrivateSession
from tacit.pretrained import load_pretrained
from tacit.pretrained.model import Pretrained
from tacit.pretrained.networks import PretrainedText

WRITERS = {"bert": write_bert, "gpt2": write_gpt2, "vit": write_vit, "convnext": write_convnext}
TEXTS = ["good", "", "schlechter als gedacht, wirklich", "so so", "a"]


def loaded(name: str, folder: Path) -> tuple[Pretrained, Tensor]:
    """A model and five records."""
    model = load_pretrained(WRITERS[name](folder))
    if isinstance(model, PretrainedText):
        return model, model.tokens(TEXTS)
    return model, torch.rand((5, 3, 9, 11), generator=torch.Generator().manual_seed(3))


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("ending", ["pt2", "onnx"])
@pytest.mark.parametrize("name", WRITERS)
def test_models_are_exported_with_a_free_batch(name: str, ending: str, tmp_path: Path) -> None:
    model, records = loaded(name, tmp_path / name)
    free, example = ({0: torch.export.Dim("n")},), (records[:2],)
    path = tmp_path / f"net.{ending}"
    with warnings.catch_warnings(action="ignore"):  # torch speaks of its own future
        if ending == "pt2":
            torch.export.save(torch.export.export(model, example, dynamic_shapes=free), path)
        else:
            pytest.importorskip("onnxruntime")
            torch.onnx.export(
                model, example, path, dynamo=True, dynamic_shapes=free, external_data=False, verbose=False
            )
    torch.testing.assert_close(load_pretrained(path)(records), model(records), rtol=0, atol=1e-5)


@pytest.mark.thorough(cases=2)
@pytest.mark.parametrize("name", ["bert", "gpt2", "vit"])
def test_a_body_with_lora_is_trained_privately_by_the_fast_engine(name: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    encoder, records = loaded(name, tmp_path / name)
    targets = {"bert": ["query", "value"], "gpt2": ["c_attn"], "vit": ["q_proj", "v_proj"]}[name]
    config = peft.LoraConfig(r=2, target_modules=targets, fan_in_fan_out=name == "gpt2")
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        peft.inject_adapter_in_model(config, encoder.body)
    model = nn.Sequential(encoder, nn.Linear(encoder.features, 2)).train()
    x, y = records.repeat(8, *[1] * (records.dim() - 1)), torch.arange(40) % 2
    before = {key: p.clone() for key, p in model.named_parameters()}
    session = PrivateSession(  # of a slow model it would warn, which is an error here
        model,
        torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1),
        (x, y),
        Plan.calibrate(
            epsilon=3.0, delta=1e-3, unit="record", adjacency="add-remove", records=40, batch_size=20,
            epochs=1, clipping=1.0,
        ),
        loss=lambda model, x, y: F.cross_entropy(model(x), y, reduction="none"),
    )  # fmt: skip
    for ticket in session.epoch():
        session.step(ticket)
    changed = {key for key, p in model.named_parameters() if not torch.equal(p, before[key])}
    assert changed == {key for key, p in model.named_parameters() if p.requires_grad}
    assert any("lora_B" in key for key in changed)
