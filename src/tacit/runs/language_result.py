"""What does a run of a language model leave? The model or its adapter, as the Hugging Face hub lays them out.

A whole model is ``config.json``, ``model.safetensors`` and the files of its tokenizer; an adapter is
``adapter_config.json``, ``adapter_model.safetensors`` and the files of the tokenizer.  Beside them lies
``base_model.json``: what the run began from, with the digest of its weights.

**Guarantee**

* The statement and the card name the base model by the SHA-256 of its weights, and say that the guarantee
  does not cover what these were trained on.
* A resumed run has the base model that it began with: another one is refused.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from torch import nn

from tacit.errors import InvalidInput, PrivacyRefusal, reason_of
from tacit.files import write_atomically
from tacit.report.model_card import CardFacts
from tacit.report.statement.statement import Statement
from tacit.runs.config import Config, LoraSection, ModelSection
from tacit.runs.hub_layout import BASE, TOKENIZER_FILES, ModelFolder
from tacit.runs.language_model import build_language_model, network_of, with_adapter, without_bars

_DIGESTS = ("weights_sha256", "tokenizer_sha256")
_NOT_WRITTEN = ("README.md",)  # by peft: the run has a card of its own


@dataclass(frozen=True)
class _Base:
    folder: str
    model_type: str
    weights_sha256: str | None
    tokenizer_sha256: str


@final
class LanguageResult:
    """The result of a run of the language model that ``config`` names."""

    used_by = "README.md shows how to load the model in transformers"

    def __init__(self, config: Config) -> None:
        self.config = config
        self._folder = ModelFolder.check(str(config.model.huggingface))
        self.base = _Base(
            self._folder.path.resolve().name,
            str(self._folder.config["model_type"]),
            self._folder.weights_digest(),
            self._folder.tokenizer_digest(),
        )

    @property
    def adapter(self) -> bool:
        """Whether the result is an adapter of LoRA, not a whole model."""
        return self.config.lora.rank is not None

    def begin(self, folder: Path, *, resumed: bool) -> None:
        """Write what the run begins from; for a resumed run, compare.

        Raises:
            InvalidInput: what the run in ``folder`` began from cannot be read.
            PrivacyRefusal: it began from other weights, or with another tokenizer.
        """
        path, own = folder / BASE, asdict(self.base)
        for leftover in folder.glob(".saving.*.tmp"):  # of a killed process
            shutil.rmtree(leftover)
        if resumed:
            before = _read(path)
            changed = [name for name in _DIGESTS if before.get(name) != own[name]]
            if changed:
                raise PrivacyRefusal(
                    f"the files in {self._folder.path} are not those that the run in {folder} began with: "
                    f"{', '.join(changed)} differ from {BASE}. Going on would give the model a statement "
                    "that names another base model. Restore the files, or start a new run with --out."
                )
            return
        write_atomically(path, lambda file: file.write((json.dumps(own, indent=1) + "\n").encode()))

    def stated(self, model: nn.Module) -> dict[str, Any]:
        """What the privacy statement says of the model, as arguments of ``make_statement``."""
        base, lora = self.base, self.config.lora
        whole = sum(p.numel() for p in model.parameters())
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        line = f"{base.model_type} of transformers, {whole:,} parameters"
        if self.adapter:
            line += (
                f", of which {trained:,} are trained: LoRA of rank {lora.rank} on {', '.join(lora.targets)}"
            )
        found: dict[str, Any] = {
            "model": line,
            "public_data": [f"the tokenizer of {base.folder}, SHA-256 {base.tokenizer_sha256}"],
            "not_covered": [
                "the tokenizer, which is taken to be public: one that was made from the records would say "
                "something about them"
            ],
            "notes": [
                _RULES[str(self.config.data.documents)].format(length=self.config.data.sequence_length)
            ],
        }
        if base.weights_sha256 is None:
            found["notes"].append("pre-training: all weights were random before the first step")
        else:
            found["public_data"].insert(
                0, f"the base model {base.folder}, SHA-256 of its weights {base.weights_sha256}"
            )
            found["not_covered"].insert(
                0,
                "the data that the base model was trained on before this run: the guarantee is for the "
                "records of this run alone",
            )
        if self.config.data.documents == "split":
            found["not_covered"].insert(
                0,
                "a document as a whole: its sequences are protected one by one, so a document of several "
                "sequences is a group; see the group figures",
            )
        return found

    def save(self, model: nn.Module, statement: Statement, folder: Path) -> tuple[str, ...]:
        """Write the model or its adapter, and the files of the tokenizer; returns the names of the files."""
        network = network_of(model)
        used, network.config.use_cache = (
            network.config.use_cache,
            bool(self._folder.config.get("use_cache", 1)),
        )
        names = []
        try:
            with tempfile.TemporaryDirectory(dir=folder, prefix=".saving.", suffix=".tmp") as made:
                saved: Any = model if self.adapter else network
                with without_bars():
                    saved.save_pretrained(made, **({"save_embedding_layers": False} if self.adapter else {}))
                for name in TOKENIZER_FILES:
                    if (self._folder.path / name).is_file():
                        shutil.copyfile(self._folder.path / name, Path(made) / name)
                for file in sorted(Path(made).iterdir()):
                    if file.name not in _NOT_WRITTEN:
                        os.chmod(file, 0o644)
                        os.replace(file, folder / file.name)
                        names.append(file.name)
        finally:
            network.config.use_cache = used
        return (*names, BASE)

    def trained(self, folder: Path) -> nn.Module:
        """The model that the run in ``folder`` has left, in training mode.

        Raises:
            PrivacyRefusal: its base model is another than that of the run.
        """
        self.begin(folder, resumed=True)
        length = self.config.data.sequence_length or 0
        if not self.adapter:
            return build_language_model(ModelSection(huggingface=str(folder)), LoraSection(), length)
        base = build_language_model(self.config.model, LoraSection(), length)
        return with_adapter(base, folder)

    def card_facts(self, statement: Statement) -> CardFacts:
        """What the model card says of the model's use."""
        return CardFacts(
            kind="text",
            task="text",
            classes=(),
            records=f"Text, of which it reads at most {self.config.data.sequence_length} tokens as trained.",
            library="peft" if self.adapter else "transformers",
            use=(_USE_ADAPTER if self.adapter else _USE_MODEL).format(base=self.base),
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as problem:
        raise InvalidInput(
            f"{path} cannot be read, which says what the run began from: {reason_of(problem)}. "
            "Restore the file, or start a new run with --out."
        ) from None


_RULES = {
    "first": "one record is the first {length} tokens of a document; what is beyond them is not trained on",
    "split": "one record is a sequence of {length} tokens of a document; they do not overlap",
}
_USE_MODEL = """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
model = AutoModelForCausalLM.from_pretrained(".")
```
"""
_USE_ADAPTER = """\
This folder holds an adapter. It belongs to the base model {base.folder}, whose weights have the SHA-256
`{base.weights_sha256}`.

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
base = AutoModelForCausalLM.from_pretrained("{base.folder}")  # the path of its folder
model = PeftModel.from_pretrained(base, ".")
```
"""
