"""A folder with a transformers model, whose files are checked before the model is loaded."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

from tacit.errors import InvalidInput, reason_of

CONFIG, WEIGHTS, INDEX, TOKENIZER = (
    "config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json",
)  # fmt: skip
TOKENIZER_FILES = (
    TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "vocab.json",
    "merges.txt", "added_tokens.json", "tokenizer.model",
)  # fmt: skip
"""The files of a tokenizer. Only tokenizer.json is read; all are saved with the trained model."""
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model.pt", "consolidated.00.pth")
_SPECIAL = ("bos_token", "eos_token", "pad_token")
_CHUNK = 1 << 20
_LISTED = 6


@final
@dataclass(frozen=True)
class ModelFolder:
    """The folder of a transformers model at ``path``; :meth:`check` makes one."""

    path: Path

    @classmethod
    def check(
        cls,
        path: Path | str,
        *,
        called: str = "[model] huggingface",
        files: tuple[str, ...] = (CONFIG, TOKENIZER),
    ) -> ModelFolder:
        """Check the folder at ``path``, and return it.

        Args:
            path: the folder.
            called: the user's setting that names the folder, for errors.
            files: the files that the folder must have, in addition to weights.

        Raises:
            InvalidInput: if the folder does not exist, if a file is missing or unreadable, or if loading the
                weights or the model would run code.
        """
        folder = cls(Path(path))
        where = f'{called} = "{path}"'
        if not folder.path.is_dir():
            raise InvalidInput(
                f"{where}: there is no such folder. Name one that holds {CONFIG}, {TOKENIZER} and, unless "
                f"the weights are to be random, {WEIGHTS}; nothing is downloaded. The path is relative to "
                "the folder in which the command is called."
            )
        names = sorted(file.name for file in folder.path.iterdir())
        if "adapter_config.json" in names:
            raise InvalidInput(
                f"{where} holds an adapter, not a whole model. Merge it into its base model first "
                "(merge_and_unload of peft), and save that."
            )
        for name in files:
            if name not in names:
                contents = ", ".join(names[:_LISTED]) + (" and others" if len(names) > _LISTED else "")
                raise InvalidInput(
                    f"{where}: {name} is missing; the folder holds {contents or 'nothing'}. Save the model "
                    "and its tokenizer there by save_pretrained of transformers."
                )
        if not folder.has_weights and (pickles := [name for name in _PICKLES if name in names]):
            raise InvalidInput(
                f"{where}: the weights in {pickles[0]} are a pickle. A pickle can run any code when it is "
                f"read. Save them as {WEIGHTS}: load the model in transformers and call save_pretrained. "
                f"Without {pickles[0]} the weights would be random."
            )
        if not isinstance(folder.config.get("model_type"), str):
            raise InvalidInput(f"{where}: {CONFIG} has no model_type. Take the folder of a whole model.")
        if "auto_map" in folder.config:
            raise InvalidInput(
                f"{where}: {CONFIG} has the key auto_map. It names code in the folder, and Tacit does not "
                "run such code. Take a model that transformers knows, or build this one by [model] factory."
            )
        for file in folder.weight_files:
            if not file.is_file():
                raise InvalidInput(f"{where}: {INDEX} names {file.name}, which is missing. Copy it again.")
        return folder

    @cached_property
    def config(self) -> dict[str, Any]:
        """The content of config.json."""
        return self.read(CONFIG)

    @property
    def has_weights(self) -> bool:
        """Whether the folder contains weights; otherwise the model starts with random weights."""
        return (self.path / WEIGHTS).is_file() or (self.path / INDEX).is_file()

    @property
    def weight_files(self) -> tuple[Path, ...]:
        """The files of the weights, sorted by name."""
        if (self.path / WEIGHTS).is_file() or not self.has_weights:
            return (self.path / WEIGHTS,) if self.has_weights else ()
        parts = self.read(INDEX).get("weight_map")
        if not isinstance(parts, dict) or not all(_is_name(part) for part in parts.values()):
            raise InvalidInput(f"{self.path / INDEX} has no weight_map with names of files. Copy it again.")
        return tuple(self.path / name for name in sorted(set(parts.values())))

    @property
    def special_tokens(self) -> dict[str, str]:
        """The texts of the begin, end and padding tokens that tokenizer_config.json names, by key."""
        if not (self.path / "tokenizer_config.json").is_file():
            return {}
        config = self.read("tokenizer_config.json")
        texts = {name: config.get(name) for name in _SPECIAL}
        texts = {name: one.get("content") if isinstance(one, dict) else one for name, one in texts.items()}
        return {name: one for name, one in texts.items() if isinstance(one, str)}

    def weights_digest(self) -> str | None:
        """Return the SHA-256 of the weights, in hexadecimal; None if there are none.

        For one file this is the hash of the file. For several files it is the hash of the lines
        "digest  name" that sha256sum prints, sorted by name.
        """
        digests = [(file_digest(file), file.name) for file in self.weight_files]
        if len(digests) < 2:
            return digests[0][0] if digests else None
        lines = "".join(f"{digest}  {name}\n" for digest, name in digests)
        return hashlib.sha256(lines.encode()).hexdigest()

    def tokenizer_digest(self) -> str:
        """Return the SHA-256 of tokenizer.json, in hexadecimal."""
        return file_digest(self.path / TOKENIZER)

    def read(self, name: str) -> dict[str, Any]:
        """Return the content of a JSON file."""
        try:
            data = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as problem:
            raise InvalidInput(
                f"{self.path / name} cannot be read as JSON: {reason_of(problem)}. Copy it again."
            ) from None
        if not isinstance(data, dict):
            raise InvalidInput(f"{self.path / name} is JSON, but not an object. Copy it again.")
        return data


def _is_name(part: object) -> bool:
    return isinstance(part, str) and Path(part).name == part


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
