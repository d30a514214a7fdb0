"""What are the records of a corpus of documents, for a language model? Sequences of tokens.

The model goes into the layout of the Hugging Face hub, by which transformers uses it: nothing here predicts.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tacit.errors import InvalidInput, MissingExtra, PrivacyRefusal
from tacit.runs.config import Config
from tacit.runs.hub_layout import ModelFolder, tokens_of
from tacit.runs.kinds.base import Kind, Progress, check_path
from tacit.runs.sections import LoraSection, check_loss

if TYPE_CHECKING:
    from tacit.datasets import Dataset

_RULES = (
    'documents = "first" makes one record of each document, its first sequence, so that the unit of privacy '
    'can be a document; documents = "split" makes a record of each of its sequences, and the unit is then a '
    "sequence."
)


class Documents(Kind):
    """Documents, one a line of JSON or a row of Parquet, cut into sequences of tokens."""

    kind: ClassVar[str] = "documents"
    sources: ClassVar[tuple[str, ...]] = ("jsonl", "parquet")

    @classmethod
    def check(cls, config: Config) -> None:
        data, lora = config.data, config.lora
        check_path("jsonl", data.jsonl, "file")
        check_path("test_jsonl", data.test_jsonl, "file")
        check_path("parquet", data.parquet, "file or folder")
        check_path("test_parquet", data.test_parquet, "file or folder")
        check_loss(config.training.loss, "tokens")
        _check_records(config)
        _check_lora(lora, ModelFolder.check(str(config.model.huggingface)))
        for package, wanted in (("transformers", True), ("peft", lora.rank is not None)):
            if wanted and importlib.util.find_spec(package) is None:
                extra = "transformers" if package == "transformers" else "lora"
                raise MissingExtra(package, extra, "[lora]" if extra == "lora" else "[model] huggingface")

    @classmethod
    def load(cls, config: Config, progress: Progress | None) -> Dataset:
        from tacit.datasets import Cutting, load_documents

        section, tokens = config.data, tokens_of(str(config.model.huggingface))
        return load_documents(
            Path(str(section.corpus)),
            text=str(section.text),
            encode=tokens.encode,
            vocabulary=tokens.vocabulary,
            spelling=tokens.spelling,
            cutting=Cutting(section.sequence_length or 2, section.documents or "first", tokens.padding),
            user=section.user,
            several=section.rows_per_user is not None,
            date=section.date,
            test_fraction=section.test_fraction,
            test_path=None if section.test_corpus is None else Path(section.test_corpus),
            unit=config.privacy.unit,
        )

    @classmethod
    def of(cls, config: Config, data: Dataset) -> Kind:
        raise NotImplementedError("transformers reads what such a run leaves")


def _check_records(config: Config) -> None:
    data, unit = config.data, config.privacy.unit
    for name, purpose in (
        ("text", "the field of a line, or the column, that holds the document's text."),
        ("sequence_length", "how many tokens a record has, a public number."),
        ("documents", _RULES),
    ):
        if getattr(data, name) is None:
            raise InvalidInput(f"[data] {name} is missing, which documents need: {purpose}")
    tests = [
        name for name in ("test_fraction", "test_jsonl", "test_parquet") if getattr(data, name) is not None
    ]
    if len(tests) != 1:
        raise InvalidInput(
            f"[data] needs exactly one of test_fraction, test_jsonl and test_parquet, to say where the test "
            f"documents come from; got {' and '.join(tests) or 'none of them'}."
        )
    if data.rows_per_user is not None:
        return  # a record is a person, whatever a document is cut into
    if data.documents == "split" and data.user is not None:
        raise InvalidInput(
            'documents = "split" makes several records of a document, and [data] user allows each user one. '
            'Take documents = "first", or say rows_per_user, so that a record is a user with several, or '
            "leave user out."
        )
    if data.documents == "split" and unit != "sequence":
        raise PrivacyRefusal(
            f'documents = "split" makes several records of a document, and each is protected by itself: the '
            f'unit of privacy is one sequence, not one {unit}. Say [privacy] unit = "sequence", or take '
            'documents = "first".'
        )
    if unit == "user" and data.user is None:
        raise PrivacyRefusal(
            "the unit of privacy is one user, and nothing says whose a document is. Name the field by [data] "
            "user, with rows_per_user if a user may have several; or name the unit that a line of the file "
            "is."
        )


def _check_lora(section: LoraSection, folder: ModelFolder) -> None:
    if section.rank is not None and not folder.has_weights:
        raise InvalidInput(
            f'[lora] corrects weights that stay as they are, and [model] huggingface = "{folder.path}" has '
            "none: model.safetensors is missing, so they would be random. Leave [lora] out, which trains all "
            "weights from random ones, or add the file."
        )
