"""The result of a run on a public model: a head, and the body that it belongs to.

**Guarantee**

* A resumed run uses the public model with which it began, since the digests are compared.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from torch import nn

from tacit.datasets import Dataset
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.files import write_atomically
from tacit.pretrained.model import Head, TunedModel, merged
from tacit.report.model_card import CardFacts
from tacit.report.statement import Statement
from tacit.runs.config import Config
from tacit.runs.public_model import columns_of, public_model
from tacit.runs.saved_model import ENCODER, card_facts, describe, save_model
from tacit.runs.sections import BEGAN


@final
class PublicResult:
    used_by = None

    def __init__(self, config: Config, data: Dataset) -> None:
        self.config, self.data = config, data
        self.encoder = public_model(config)

    def begin(self, folder: Path, *, resumed: bool) -> None:
        """Write the digest of the public model; for a resumed run, compare it instead."""
        path = folder / BEGAN
        if not resumed:
            text = json.dumps({"name": self.encoder.name, "sha256": self.encoder.digest}, indent=1) + "\n"
            write_atomically(path, lambda file: file.write(text.encode()))
            return
        try:
            began = json.loads(path.read_text(encoding="utf-8"))["sha256"]
        except (OSError, ValueError, KeyError, TypeError):
            raise InvalidInput(
                f"{path} cannot be read: it names the public model of the run. Restore the file, or start "
                "a new run with --out."
            ) from None
        if began != self.encoder.digest:
            raise PrivacyRefusal(
                f"{self.config.model.public} is not the public model of this run: {folder} began with "
                "another one, and the statement would name a wrong model. Restore its files, or start a new "
                "run with --out."
            )

    def stated(self, model: nn.Module) -> dict[str, Any]:
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        part = _TUNED[str(self.config.model.tune)]
        return {
            "model": f"{self.encoder.name}; {trained:,} weights are trained: {part}",
            "public_data": [f"the public model {self.encoder.name}, SHA-256 {self.encoder.digest}"],
            "not_covered": [
                "the data that the public model was trained on before this run: the guarantee is for the "
                "records of this run alone"
            ],
            "notes": [],
        }

    def save(self, model: nn.Module, statement: Statement, folder: Path) -> tuple[str, ...]:
        columns = columns_of(self.data)
        if isinstance(model, Head):
            tuned = TunedModel(self.encoder, model, columns)
            names = tuned.encoder.save(folder / ENCODER)
        else:
            assert isinstance(model, TunedModel), "as new_public_model makes it"
            tuned = merged(copy.deepcopy(model))
            names = tuned.encoder.save_trained(folder / ENCODER)
        description = replace(
            describe(self.config, self.data, statement.to_json()), pretrained=tuned.encoder.digest
        )
        save_model(tuned.head, description, folder / "model.safetensors")
        return ("model.safetensors", *(f"{ENCODER}/{name}" for name in names), BEGAN)

    def card_facts(self, statement: Statement) -> CardFacts:
        return card_facts(describe(self.config, self.data, statement.to_json()))


_TUNED = {
    "head": "a linear layer on its frozen features",
    "lora": "corrections of low rank (LoRA) and a linear layer",
    "full": "all of them",
}
