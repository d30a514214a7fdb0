"""Finds the kind of a public model from file names and configuration files, without torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

from tacit.errors import InvalidInput, needed, reason_of

CONFIG, SAFETENSORS, INDEX, TOKENIZER = (
    "config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json",
)  # fmt: skip
_TOKENIZER_CONFIG, _CHAT_TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
TOKENIZER_FILES = (
    TOKENIZER, _TOKENIZER_CONFIG, "special_tokens_map.json", _CHAT_TEMPLATE, "vocab.json",
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
        """Check the folder at ``path``, and return it."""
        folder = cls(Path(path))
        where = f'{called} = "{path}"'
        if not folder.path.is_dir():
            raise InvalidInput(
                f"{where}: there is no such folder. Name one that contains {CONFIG}, {TOKENIZER} and "
                f"{SAFETENSORS} (not needed for random weights); nothing is downloaded. A relative path "
                "starts at the current folder."
            )
        names = sorted(file.name for file in folder.path.iterdir())
        if "adapter_config.json" in names:
            raise InvalidInput(
                f"{where} contains an adapter, not a whole model. Merge it into its base model first "
                "(merge_and_unload of peft), and save that."
            )
        for name in files:
            if name not in names:
                contents = ", ".join(names[:_LISTED]) + (" and others" if len(names) > _LISTED else "")
                raise InvalidInput(
                    f"{where}: {name} is missing; the folder contains {contents or 'nothing'}. Save the "
                    "model and its tokenizer there with save_pretrained of transformers."
                )
        if not folder.has_weights and (pickles := [name for name in _PICKLES if name in names]):
            raise InvalidInput(
                f"{where}: the weights in {pickles[0]} are a pickle, which can run any code when read. Save "
                f"them as {SAFETENSORS}: load the model in transformers and call save_pretrained. If you "
                f"only remove {pickles[0]}, the weights will be random."
            )
        if not isinstance(folder.config.get("model_type"), str):
            raise InvalidInput(f"{where}: {CONFIG} has no model_type. Use the folder of a whole model.")
        if "auto_map" in folder.config:
            raise InvalidInput(
                f"{where}: {CONFIG} asks for code in the folder (auto_map), which Tacit does not run. Use a "
                "model that transformers includes, or build this one by [model] factory."
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
        return (self.path / SAFETENSORS).is_file() or (self.path / INDEX).is_file()

    @property
    def weight_files(self) -> tuple[Path, ...]:
        """The files of the weights, sorted by name."""
        if (self.path / SAFETENSORS).is_file() or not self.has_weights:
            return (self.path / SAFETENSORS,) if self.has_weights else ()
        parts = self.read(INDEX).get("weight_map")
        files = parts.values() if isinstance(parts, dict) else [None]
        if not all(isinstance(part, str) and Path(part).name == part for part in files):
            raise InvalidInput(
                f"{self.path / INDEX} does not name the weight files (weight_map). Copy it again."
            )
        return tuple(self.path / name for name in sorted(set(files)))

    @property
    def special_tokens(self) -> dict[str, str]:
        """The texts of the begin, end and padding tokens that tokenizer_config.json names, by key."""
        if not (self.path / _TOKENIZER_CONFIG).is_file():
            return {}
        config = self.read(_TOKENIZER_CONFIG)
        texts = {name: config.get(name) for name in _SPECIAL}
        texts = {name: one.get("content") if isinstance(one, dict) else one for name, one in texts.items()}
        return {name: one for name, one in texts.items() if isinstance(one, str)}

    @property
    def chat_template(self) -> str | None:
        """The template by which the tokenizer writes a chat as one text; None if there is not exactly one."""
        file = self.path / _CHAT_TEMPLATE
        if file.is_file():
            return file.read_text(encoding="utf-8")
        config = self.read(_TOKENIZER_CONFIG) if (self.path / _TOKENIZER_CONFIG).is_file() else {}
        template = config.get("chat_template")
        return template if isinstance(template, str) else None

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

    def tokenizer(self, vocabulary: int) -> Any:
        """Return the tokenizer, without padding; refuse one with tokens outside the model's vocabulary."""
        tokenizers = needed("tokenizers", "transformers", "a model of Hugging Face")
        path = str(self.path / TOKENIZER)
        try:
            tokenizer = tokenizers.Tokenizer.from_file(path)
        except Exception as problem:  # noqa: BLE001  # the library raises Exception itself
            raise InvalidInput(
                f"{path} cannot be read as a tokenizer: {problem}. Save it again by save_pretrained."
            ) from None
        tokenizer.no_padding()
        largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
        if largest >= vocabulary:
            raise InvalidInput(
                f"the tokenizer in {self.path} does not fit the model: it has a token {largest}, but "
                f"config.json has vocab_size = {vocabulary}. Use the model's own tokenizer."
            )
        return tokenizer

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


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


FORMAT = 1
SAVED = "pretrained.json"
"""The file in a saved folder with the settings to load its model."""
_SETTINGS = ("architecture", "length", "image_size")
TEXT, PICTURES, WEIGHTS, PROGRAM = "text", "pictures", "weights", "program"
_TAKES = {TEXT: ("length",), PICTURES: ("image_size",), WEIGHTS: ("architecture", "image_size"), PROGRAM: ()}
_WEIGHTS, _PROGRAMS = (".pth", ".pt", ".safetensors"), (".pt2", ".onnx")
_PREPROCESSOR = "preprocessor_config.json"
USUAL_SIZE, SMALL_SIZE, _SMALL = 224, 128, 64


@final
@dataclass(frozen=True)
class Found:
    """A public model that was found, but not loaded yet.

    Attributes:
        kind: ``TEXT`` or ``PICTURES`` for a transformers folder, ``WEIGHTS`` or ``PROGRAM`` for a file.
        path: the folder or file to load.
        settings: the given settings for loading it: architecture, length or image_size.
        digest: the digest of the loaded model, if ``Pretrained.save`` wrote it; else None.
    """

    kind: str
    path: Path
    settings: Mapping[str, Any]
    digest: str | None = None


def look_at(path: Path, label: str, arguments: Mapping[str, Any]) -> Found:
    """Find the model at a path."""
    settings = {name: value for name, value in arguments.items() if value is not None}
    place, digest = path, None
    if (path / SAVED).is_file():
        place, settings, digest = _saved_model(path, settings)
    where = f'{label} = "{place}"'
    if not place.exists():
        raise InvalidInput(
            f"{where}: there is no such file or folder. Name the folder of a transformers model, or a file "
            f"{', '.join((*_WEIGHTS, *_PROGRAMS))}; nothing is downloaded. A relative path starts at the "
            "current folder."
        )
    kind = _kind(place, label)
    for name in settings:
        if name not in _TAKES[kind]:
            takes = " and ".join(f"`{one}`" for one in _TAKES[kind]) or "no setting"
            raise InvalidInput(
                f"does not apply to {where}, which takes {takes}", argument=name, fix=f"Leave `{name}` out."
            )
    if kind == WEIGHTS and "architecture" not in settings:
        raise InvalidInput(
            f"{where} contains only weights, without their network",
            fix='Name `architecture`, such as architecture = "mobilenet_v2".',
        )
    return Found(kind, place, settings, digest)


def _kind(path: Path, label: str) -> str:
    if path.is_dir():
        present = [(path / name).is_file() for name in (TOKENIZER, _PREPROCESSOR)]
        if all(present):
            raise InvalidInput(
                f'{label} = "{path}" has both {TOKENIZER} and {_PREPROCESSOR}, so it reads texts and images '
                "together. Save its text part or its image part alone, with save_pretrained."
            )
        folder = ModelFolder.check(path, called=label, files=(CONFIG,))
        of_pictures = present[1] or (
            not present[0] and bool({"image_size", "num_channels"} & folder.config.keys())
        )
        if not of_pictures and not present[0]:
            ModelFolder.check(path, called=label)  # reports the missing files
        if not folder.has_weights:
            raise InvalidInput(f'{label} = "{path}" has no weights. Add model.safetensors.')
        return PICTURES if of_pictures else TEXT
    if path.suffix.lower() in _WEIGHTS:
        return WEIGHTS
    if path.suffix.lower() in _PROGRAMS:
        return PROGRAM
    raise InvalidInput(
        f'{label} = "{path}" must end in {", ".join((*_WEIGHTS, *_PROGRAMS))}, or be the folder of a '
        "transformers model. Use the file extension of its format."
    )


def _saved_model(folder: Path, arguments: Mapping[str, Any]) -> tuple[Path, dict[str, Any], str]:
    """Return the path of a saved model, the settings for loading it, and its digest."""
    path = folder / SAVED
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
        form, digest, file = description["format"], str(description["digest"]), description.get("file")
    except (OSError, ValueError, TypeError, KeyError) as problem:
        raise InvalidInput(f"{path} cannot be read: {reason_of(problem)}. Copy the folder again.") from None
    if form != FORMAT:
        raise InvalidInput(
            f"{path} has format {form!r}; this version of Tacit reads {FORMAT}. Use the version that wrote "
            "it."
        )
    settings = {name: description[name] for name in _SETTINGS if description.get(name) is not None}
    for name, value in arguments.items():
        if settings.get(name) != value:
            raise InvalidInput(
                f"{name} = {value!r} contradicts the model saved in {folder}, which has "
                f"{settings.get(name)!r}. Remove {name}, or load the original model."
            )
    return (folder if file is None else folder / Path(str(file)).name), settings, digest


def usual_size(height: int, width: int) -> int:
    """Return the side length in pixels to which images are resized for a model that takes any size.

    It is 128 for small images: on CIFAR-10, MobileNetV2 is most accurate at 128 pixels, and takes twice as
    long at 224.
    """
    return SMALL_SIZE if max(height, width) <= _SMALL else USUAL_SIZE
