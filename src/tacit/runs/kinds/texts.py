"""Lines of text as characters, and documents of a corpus as tokens.

Letters: n records, L characters.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from tacit.columns.examples import FORMS, FORMS_IN_WORDS, Names, in_run_file, proposed_fields
from tacit.columns.sections import check_column, setting
from tacit.columns.tables import lines_of_json
from tacit.errors import InvalidInput, MissingExtra, PrivacyRefusal, without_values
from tacit.pretrained.finding import ModelFolder
from tacit.recipes import LORA_RANK, lora_targets
from tacit.runs.config import Config
from tacit.runs.init import OF_PEOPLE, PROMISE, Facts, written
from tacit.runs.kinds.chats import ChatTemplate
from tacit.runs.kinds.source import (
    Kind,
    Piece,
    Progress,
    Source,
    about_lines,
    check_loss,
    check_no_pictures,
    check_path,
    numbered,
)

if TYPE_CHECKING:  # a run file is checked without torch
    from torch import Tensor

    from tacit.datasets import Dataset
    from tacit.datasets.text import Answered, Document


def check_characters(config: Config) -> None:
    check_loss(config.training.loss, "characters")


@final
@dataclass(frozen=True)
class Text(Kind):
    """Lines of text, each with at most ``longest`` characters of ``alphabet``."""

    kind: ClassVar[str] = "text"
    sources: ClassVar[tuple[str, ...]] = ("text",)
    example: ClassVar[str] = "new.txt"
    label: ClassVar[str] = "line"
    alphabet: str
    longest: int

    @classmethod
    def check(cls, config: Config) -> None:
        section = config.data
        check_path("text", section.text, "text")
        check_path("test_text", section.test_text, "text")
        if section.alphabet is None or section.longest is None:
            raise InvalidInput(
                "[data] text needs alphabet (every character that may occur) and longest (the maximum line "
                "length). Declare both without looking at the data."
            )
        check_characters(config)
        check_no_pictures(config, "text")

    @classmethod
    def load(cls, config: Config, progress: Progress) -> Dataset:
        from tacit.datasets import load_text

        section = config.data
        return load_text(
            Path(str(section.text)),
            alphabet=section.alphabet or "",
            longest=section.longest or 1,
            test_fraction=section.test_fraction,
            test_path=None if section.test_text is None else Path(section.test_text),
            unit=config.privacy.unit,
        )

    @classmethod
    def of(cls, config: Config, data: Dataset) -> Text:
        return cls(data.alphabet, data.input_shape[0] - 1)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.longest + 1,)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Text:
        from tacit.datasets.text import Alphabet

        return cls(Alphabet(data["alphabet"]).characters, int(data["longest"]))

    def describe(self) -> str:
        return (
            f"Text, one record a line, at most {self.longest} characters from the declared "
            f"{len(self.alphabet)}."
        )

    def inputs(self, records: Any) -> Tensor:
        lines = list(records) if isinstance(records, list | tuple | np.ndarray) else None
        if not lines or not all(isinstance(line, str) for line in lines):
            kind = "an empty one" if lines == [] else type(records).__name__
            raise InvalidInput(
                f"records must be a list of strings, or the path of a file with one per line; got {kind}. "
                "Convert them."
            )
        return self._tokens([str(line) for line in lines])

    def _tokens(self, lines: list[str]) -> Tensor:
        from tacit.datasets.text import Alphabet, token_pair

        return token_pair(lines, Alphabet(self.alphabet), self.longest).inputs

    def lengths(self, inputs: Tensor) -> Tensor:
        """Return the number of characters of each record of ``inputs``: (n, L) to (n,)."""
        from tacit.datasets.text import END

        return (inputs != END).sum(dim=1)

    def count(self, path: Path) -> int | None:
        return about_lines(path)

    def pieces(self, path: Path, rows: int) -> Iterator[Piece]:
        from tacit.datasets.text import Alphabet, stream_records

        lines, done = stream_records(path, Alphabet(self.alphabet), self.longest), 0
        while some := list(islice(lines, rows)):
            yield numbered(done, self._tokens(some))
            done += len(some)


_RULES = (
    'set it to "first" (each document is one record, its first sequence, and the unit can be a document) '
    'or "split" (each sequence is a record, and the unit is a sequence).'
)


class Documents(Source):
    """Documents or examples for a language model, one in each line of JSON or row of Parquet.

    Documents are cut into sequences of tokens.  An example is one record; only its answer is learned.  The
    result of such a run is a folder that transformers reads.
    """

    sources: ClassVar[tuple[str, ...]] = ("jsonl", "parquet")

    @classmethod
    def check(cls, config: Config) -> None:
        data, lora = config.data, config.lora
        check_path("jsonl", data.jsonl, "file")
        check_path("test_jsonl", data.test_jsonl, "file")
        check_path("parquet", data.parquet, "file or folder")
        check_path("test_parquet", data.test_parquet, "file or folder")
        check_loss(config.training.loss, "tokens" if data.chosen is None else "pairs")
        _check_records(config)
        folder = ModelFolder.check(str(config.model.huggingface))
        if data.chosen is not None and not folder.has_weights:
            raise InvalidInput(
                "[data] chosen trains with DPO, which compares with a public model, so [model] huggingface "
                f'= "{folder.path}" needs weights. Add model.safetensors, ideally of an instruction-tuned '
                "model."
            )
        if lora.rank is not None and not folder.has_weights:
            raise InvalidInput(
                f'[lora] keeps the weights of [model] huggingface = "{folder.path}" frozen, but '
                "model.safetensors is missing. Add the file, or remove [lora] to train all weights from "
                "scratch."
            )
        for package, used in (("transformers", True), ("peft", lora.rank is not None)):
            if used and importlib.util.find_spec(package) is None:
                extra = "transformers" if package == "transformers" else "lora"
                raise MissingExtra(package, extra, "[lora]" if extra == "lora" else "[model] huggingface")

    @classmethod
    def load(cls, config: Config, progress: Progress) -> Dataset:
        from tacit.datasets.text import Cutting, Fields, answered_of, load_examples, pair_of

        section, tokens = config.data, tokens_of(str(config.model.huggingface))
        path, form = Path(str(section.corpus)), section.fields
        several = section.rows_per_user is not None
        cutting = Cutting(section.sequence_length or 2, section.documents or "first", tokens.padding)
        if section.text is not None:
            content: str | tuple[Names, ...] = section.text
            source = cutting.describe(path)
            make = partial(pair_of, encode=tokens.encode, cutting=cutting, several=several)
        else:
            content = tuple(form.values())
            source = f"examples in {path.name} ({', '.join(form)}): at most {cutting.length} tokens of each"
            make = partial(answered_of, encode=encoder_of(form, tokens), cutting=cutting, several=several)
        return load_examples(
            path,
            Fields(content, section.user, section.date),
            make,
            source=source,
            vocabulary=tokens.vocabulary,
            spelling=tokens.spelling,
            several=several,
            test_fraction=section.test_fraction,
            test_path=None if section.test_corpus is None else Path(section.test_corpus),
            unit=config.privacy.unit,
        )


def _check_records(config: Config) -> None:
    data, unit = config.data, config.privacy.unit
    if tuple(data.fields) not in FORMS:
        raise InvalidInput(
            f"[data] must name the fields of one kind of example: {FORMS_IN_WORDS}. It names "
            f"{in_run_file(data.fields) or 'none'}. Correct or complete the keys."
        )
    for name, purpose in (
        ("sequence_length", "set it to the number of tokens per record, a public number."),
        ("documents", _RULES),
    ):
        if getattr(data, name) is None and (name != "documents" or data.text is not None):
            raise InvalidInput(f"[data] {name} is missing: {purpose}")
    if data.text is None and data.documents == "split":
        raise InvalidInput(
            f'documents = "split" applies only to documents. With {in_run_file(data.fields)}, each example '
            "is one record. Remove documents."
        )
    if data.chosen is not None and config.privacy.test_noise is not None:
        raise InvalidInput(
            "[privacy] test_noise does not support preferences. Remove it, and test on a separate file of "
            "pairs outside the ledger's data set."
        )
    tests = [
        name for name in ("test_fraction", "test_jsonl", "test_parquet") if getattr(data, name) is not None
    ]
    if len(tests) != 1:
        raise InvalidInput(
            "[data] needs exactly one source of test documents: test_fraction, test_jsonl or test_parquet; "
            f"got {' and '.join(tests) or 'none of them'}."
        )
    if data.rows_per_user is not None:
        return  # a record is a person, whatever a document is cut into
    if data.documents == "split" and data.user is not None:
        raise InvalidInput(
            'documents = "split" with [data] user gives one user several records. Set rows_per_user, which '
            'makes each user one record. Or set documents = "first", or remove user.'
        )
    if data.documents == "split" and unit != "sequence":
        raise PrivacyRefusal(
            f'[privacy] unit = "{unit}" does not fit documents = "split", which protects each sequence '
            'separately. Set unit = "sequence", or documents = "first".'
        )
    if unit == "user" and data.user is None:
        raise PrivacyRefusal(
            '[privacy] unit = "user" needs [data] user, the field that identifies the user. Set it, and '
            "rows_per_user if users may have several documents. Or set unit to what one line of the file is."
        )


def encoder_of(fields: Mapping[str, Names], tokens: Tokens) -> Callable[[Document], Sequence[Answered]]:
    """Return a function that encodes one example: one answer, or the chosen and the rejected one."""

    def encode(example: Document) -> Sequence[Answered]:
        parts = dict(zip(fields, example.parts, strict=True))
        prompt, answers = parts.pop("prompt", []), [*parts.values()]
        if "prompt" not in fields and len(answers) > 1:
            same = takewhile(lambda turns: turns[0] == turns[1], zip(*answers, strict=False))
            prompt = [turn for turn, _ in same]
            answers = [answer[len(prompt) :] for answer in answers]

        kinds = {type(part) for part in (prompt, *answers)}
        if kinds == {str}:
            return [tokens.completion(prompt, answer) for answer in answers]
        if kinds == {list}:
            return [tokens.chats.encode(prompt, answer, example.where) for answer in answers]
        raise InvalidInput(
            f"{example.where}: {', '.join(fields)} must be all strings or all lists of messages. If they are "
            "strings, set [data] prompt. If they are whole chats, remove prompt."
        )

    return encode


BASE = "base_model.json"
"""The file in a run's folder with the digests of its base model and tokenizer."""


@final
class Tokens:
    """The tokenizer of the model in a folder.

    Attributes:
        vocabulary: the number of tokens in the model's vocabulary.
        end: the token for the end of a text, or None.
        padding: the token that pads records: the tokenizer's padding token, else ``end``, else token 0.  Any
            token is suitable, since padding has no loss and predictions before it do not depend on it.
    """

    def __init__(self, folder: ModelFolder) -> None:
        self._folder = folder
        self.vocabulary = int(folder.config.get("vocab_size") or 0)
        self._tokenizer = folder.tokenizer(self.vocabulary)
        self._tokenizer.no_truncation()
        ids = {name: self._tokenizer.token_to_id(text) for name, text in folder.special_tokens.items()}
        self.end = _known(ids.get("eos_token"), folder.config.get("eos_token_id"))
        self._first = _known(ids.get("bos_token"), folder.config.get("bos_token_id"), self.end)
        padding = _known(ids.get("pad_token"), folder.config.get("pad_token_id"), self.end)
        self.padding = 0 if padding is None else padding
        if max(self.padding, self.end or 0) >= self.vocabulary:
            raise InvalidInput(
                f"{folder.path} has a padding or end-of-text token outside the vocabulary (vocab_size = "
                f"{self.vocabulary} in config.json). Correct pad_token_id and eos_token_id."
            )

    def encode(self, text: str) -> list[int]:
        tokens = self._ids(text)
        return tokens if self.end is None or tokens[-1:] == [self.end] else [*tokens, self.end]

    def begin(self, text: str) -> list[int]:
        """Return the tokens of a text that is to be continued; for an empty one, a token of the beginning."""
        tokens = self._ids(text)
        if text and tokens[-1:] == [self.end]:
            tokens.pop()
        return tokens or ([] if self._first is None else [self._first])

    def decode(self, tokens: list[int]) -> str:
        """Return the text of tokens, without special ones."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

    @property
    def spelling(self) -> Spelled:
        return Spelled(self._tokenizer)

    def completion(self, prompt: str, completion: str) -> Answered:
        """Encode both separately, as in generation, where the model gets the prompt alone."""
        from tacit.datasets.text import Answered

        start = self._ids(prompt)
        if start and start[-1] == self.end:
            start.pop()  # some tokenizers end each text
        rest = self._ids(completion, special=False)
        if self.end is not None and rest[-1:] != [self.end]:
            rest.append(self.end)
        return Answered([*start, *rest], [False] * len(start) + [True] * len(rest))

    @cached_property
    def chats(self) -> ChatTemplate:
        return ChatTemplate(self._folder)

    def _ids(self, text: str, *, special: bool = True) -> list[int]:
        try:
            return list(self._tokenizer.encode(text, add_special_tokens=special).ids)
        except Exception as problem:  # noqa: BLE001  # its message would show the record
            raise InvalidInput(
                f"the tokenizer failed on a document ({without_values(problem)}). If it has no token for "
                "unknown text, choose one that has."
            ) from None


@final
class Spelled:
    """An encoding of synthetic text in a tokenizer's tokens, one token for each character."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        encodings = [self._tokenizer.encode(character, add_special_tokens=False).ids for character in text]
        for character, tokens in zip(text, encodings, strict=True):
            if len(tokens) != 1:
                raise InvalidInput(
                    f"[canaries] need one token for each character: the tokenizer writes {character!r} as "
                    f"{len(tokens)} tokens. Use other characters, or remove [canaries]."
                )
        return [token for tokens in encodings for token in tokens]

    def decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=False))


def tokens_of(folder: Path | str) -> Tokens:
    return Tokens(ModelFolder.check(folder))


def _known(*values: object) -> int | None:
    for value in values:
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(first, int) and not isinstance(first, bool):
            return first
    return None


# --- a proposed run file ------------------------------------------------------------------------------------


def language_text(path: Path, facts: Facts) -> str:
    """Write a run file for a language model; only the names of fields in the first line are read."""
    example = next(lines_of_json(path), None)
    if example is None:
        raise InvalidInput(f"{path} is empty. Write one example per line.")
    for option, name in (("--text", facts.text), ("--user", facts.user)):
        if name is not None:
            check_column(option, name, example)
    fields: dict[str, Names | None] = {"text": facts.text}
    if facts.text is None:
        fields = {**proposed_fields(example)} or fields
    folder = None if facts.public_model is None else ModelFolder.check(facts.public_model, called="--model")
    config = {} if folder is None else folder.config
    most = config.get("max_position_embeddings") or config.get("n_positions") or _LENGTH
    targets = None
    with suppress(InvalidInput):
        targets = lora_targets(str(config.get("model_type")))

    data: dict[str, object] = {"jsonl": path.as_posix(), **fields}
    data["sequence_length"] = min(most, _LENGTH)
    if "text" in fields:
        data["documents"] = "first"
    data["test_fraction"] = facts.test_fraction
    if facts.user is not None:
        data |= {"user": facts.user, "rows_per_user": facts.rows_per_user or 2}
    parts = [
        _HEAD.format(file=path.name),
        written("data", [setting(key, value, _ABOUT[key]) for key, value in data.items()]),
        written("model", [setting("huggingface", facts.public_model, f"a folder; {_ABOUT['jsonl']}")]),
    ]
    if folder is None or folder.has_weights:
        about = 'the layers to adapt, such as ["q_proj", "v_proj"]'
        parts.append(_LORA + setting("targets", targets, about) + "\n")
    promise = PROMISE | (_OF_LINES if facts.user is None else OF_PEOPLE)
    privacy = [setting(key, getattr(facts, key), comment) for key, comment in promise.items()]
    bound = 2.0 if "chosen" in fields else 8.0
    privacy.append(setting("loss_bound", bound, "a loss above it counts as this, in the noisy training loss"))
    return "\n".join([*parts, written("privacy", privacy) + _TRAINING])


_HEAD = """\
# A private training run of a language model on {file}.
#
# Everything here is public. The names of fields were read from the first line of the file: they become public
# with this file, so check them. Replace every "FILL IN" by what is known WITHOUT the data.
"""
_LENGTH = 512
_ABOUT = {
    "jsonl": "relative to the folder where you run tacit",
    "text": "the field of a document's text; or prompt and completion; or messages; or chosen and rejected",
    "prompt": "the field of what the model gets",
    "completion": "the field of the answer, which alone is learned",
    "messages": "the field of a chat; the assistant's turns are learned",
    "chosen": "the field of the better answer",
    "rejected": "the field of the worse answer",
    "sequence_length": "maximum tokens per record, a public number",
    "documents": 'the first sequence of each; "split" takes all',
    "test_fraction": "fraction of lines for testing",
    "user": "the field of the person of each line",
    "rows_per_user": "lines of each person read per step",
}
_LORA = f"""\
[lora]                            # without this section, all weights are trained
rank = {LORA_RANK}
alpha = {4 * LORA_RANK}
"""
_TRAINING = """\
clipping_norm = 0.1               # maximum norm of one record's gradient

[optimizer]
name = "adam"
learning_rate = 0.002

[training]
batch_size = "auto"               # a twentieth of the records, but at least 256; or a number
steps = 100                       # more steps need more noise in each; or epochs
physical_batch_size = 16          # records in memory at once
"""
_OF_LINES = {
    "unit": 'what one line is, such as "chat"; one of them is protected',
    "adjacency": '"add-remove" hides whether a line is there, "replace-one" what it says',
    "records": "approximate number of training lines, publicly known",
}
