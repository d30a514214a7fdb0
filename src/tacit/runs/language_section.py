"""What is wrong with a run of a language model? Found without torch, before any document is read."""

from __future__ import annotations

import importlib.util

from tacit.errors import InvalidInput, MissingExtra, PrivacyRefusal
from tacit.runs.config import Config, LoraSection
from tacit.runs.hub_layout import ModelFolder

_ONLY_DOCUMENTS = ("test_jsonl", "test_parquet", "sequence_length", "documents")
_RULES = (
    'documents = "first" makes one record of each document, its first sequence, so that the unit of privacy '
    'can be a document; documents = "split" makes a record of each of its sequences, and the unit is then a '
    "sequence."
)


def check_language(config: Config) -> None:
    """Refuse sections that describe no language model, or a promise that its records do not keep.

    Raises:
        InvalidInput: settings are missing or do not go together; a file of the model is missing.
        MissingExtra: transformers or peft is not installed.
        PrivacyRefusal: the unit is another than what one record is.
    """
    data, model = config.data, config.model
    if (data.corpus is None) != (model.huggingface is None):
        source = "[data] jsonl" if data.parquet is None else "[data] parquet"
        keys = (source, "[model] huggingface")
        there, missing = keys if data.corpus is not None else keys[::-1]
        raise InvalidInput(
            f"{there} is set and {missing} is not. A language model, [model] huggingface, is trained on "
            "documents, [data] jsonl or parquet, and they are read by its tokenizer. Set both, or neither."
        )
    if data.corpus is None or model.huggingface is None:
        given = [f"[data] {name}" for name in _ONLY_DOCUMENTS if getattr(data, name) is not None]
        given += ["[lora]"] if config.lora.model_fields_set else []
        if given:
            raise InvalidInput(
                f"{given[0]} is for language models, [model] huggingface with [data] jsonl or "
                "parquet. Leave it out."
            )
        return
    _check_records(config)
    folder = ModelFolder.check(model.huggingface)
    _check_lora(config.lora, folder)
    for package, wanted in (("transformers", True), ("peft", config.lora.rank is not None)):
        if wanted and importlib.util.find_spec(package) is None:
            extra = "transformers" if package == "transformers" else "lora"
            raise MissingExtra(package, extra, "[lora]" if extra == "lora" else "[model] huggingface")


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
    if section.rank is None:
        if section.model_fields_set:
            raise InvalidInput("[lora] rank is missing: how many directions a correction has, such as 8.")
        return
    if not section.targets:
        raise InvalidInput(
            '[lora] targets is missing: the layers that get a correction, such as ["c_attn"] for GPT-2 and '
            '["q_proj", "v_proj"] for Llama.'
        )
    if not folder.has_weights:
        raise InvalidInput(
            f'[lora] corrects weights that stay as they are, and [model] huggingface = "{folder.path}" has '
            "none: model.safetensors is missing, so they would be random. Leave [lora] out, which trains all "
            "weights from random ones, or add the file."
        )
