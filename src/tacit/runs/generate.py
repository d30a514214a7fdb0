"""Text sampled from the language model of a finished run, in a folder with the run's statement.

They are post-processing: the guarantee of the run covers them, and they cost nothing.
"""

# Guarantee:
# * Texts depend on the released model, on the user's prompts and on a public seed. Nothing is read from the
#   run's folder private/.

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, final

from filelock import FileLock, Timeout

from tacit.columns.examples import messages_of
from tacit.columns.tables import is_json, lines_of_json
from tacit.errors import InvalidInput, check_integer, check_real, reason_of
from tacit.files import write_atomically
from tacit.pretrained.finding import SAFETENSORS, ModelFolder, file_digest
from tacit.report.verification import check_fields, read_json, read_statement
from tacit.runs.config import Config, read_config
from tacit.runs.kinds.texts import BASE, Tokens

TEXTS, SETTINGS = "texts.jsonl", "settings.json"
"""The files of the texts and of the settings with which they were written."""
_STATEMENTS = ("statement.json", "statement.txt")
_ADAPTER = "adapter_model.safetensors"

Prompt = Mapping[str, Any]
"""A line of the file of prompts: ``prompt`` or ``messages``, and fields that are copied; else empty."""


@final
@dataclass(frozen=True)
class Generation:
    """Settings of a sampling: ``count`` samples per prompt, in order.

    Attributes:
        prompts: the prompts; a single empty one for unprompted samples.
        max_new_tokens: the maximum number of new tokens; None for the run's record length minus the prompt.
        top_p: nucleus sampling: sample among the likeliest tokens with this total probability.
        seed: a public number; :meth:`seed_of` derives the seed of sample i, from 0.
        batch_size: the number of samples generated together; it changes only rounding.
    """

    run: Path
    out: Path
    prompts: tuple[Prompt, ...] = ({},)
    count: int = 1
    max_new_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 0.95
    seed: int = 0
    batch_size: int = 32
    device: str = "cpu"

    @property
    def total(self) -> int:
        return self.count * len(self.prompts)

    @cached_property
    def config(self) -> Config:
        return read_config(self.run / "config.toml")

    @cached_property
    def folder(self) -> ModelFolder:
        """The folder with the tokenizer and the configuration of the network."""
        whole = self.config.lora.rank is None
        return ModelFolder.check(self.run if whole else str(self.config.model.huggingface))

    def settings(self) -> dict[str, Any]:
        """Return all that decides the texts."""
        adapter = self.run / _ADAPTER
        prompts = json.dumps(self.prompts, sort_keys=True)
        return {
            "run": self.run.resolve().name,
            "weights_sha256": file_digest(adapter) if adapter.exists() else self.folder.weights_digest(),
            "prompts_sha256": hashlib.sha256(prompts.encode()).hexdigest(),
            "prompts": len(self.prompts),
            "texts_for_each_prompt": self.count,
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
        }

    def seed_of(self, number: int) -> int:
        """Return the first eight bytes of the SHA-256 of "seed number", so that no two runs share seeds."""
        digest = hashlib.sha256(f"{self.seed} {number}".encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1


def check_generation(wanted: Generation, prompts: Path | None = None) -> Generation:
    """Check the request before any weights are loaded, and return it with the prompts in that file."""
    check_integer("count", wanted.count, low=1)
    check_integer("batch_size", wanted.batch_size, low=1)
    check_integer("seed", wanted.seed, low=0)
    if wanted.max_new_tokens is not None:
        check_integer("max_new_tokens", wanted.max_new_tokens, low=1)
    check_real("temperature", wanted.temperature, low=0.0, high=100.0, open_low=True)
    check_real("top_p", wanted.top_p, low=0.0, high=1.0, open_low=True)
    _check_run(wanted.run)
    if prompts is not None:
        wanted = replace(wanted, prompts=tuple(_read_prompts(prompts)))
    _check_out(wanted.out, wanted.settings())
    return wanted


def _check_run(run: Path) -> None:
    if not run.is_dir():
        raise InvalidInput(f"there is no run at {run}. Give a folder that tacit train wrote.")
    if not (run / BASE).is_file():
        raise InvalidInput(
            f"{run} is not the run of a language model. Give the folder that tacit train wrote, not the "
            "public model's. For other models, use tacit predict."
        )
    for name in (*_STATEMENTS, "config.toml"):
        if not (run / name).is_file():
            raise InvalidInput(
                f"the run in {run} is not finished: {name} is missing. Finish it with tacit train --resume."
            )
    if not (run / _ADAPTER).exists() and not ModelFolder(run).has_weights:
        raise InvalidInput(
            f"{run} has no trained weights ({_ADAPTER} or {SAFETENSORS}). Finish the run with tacit train "
            "--resume, or copy its folder again."
        )
    check_fields(read_statement(run / "statement.json"))


def _check_out(out: Path, settings: Mapping[str, Any]) -> None:
    """Refuse a folder that holds anything except texts of the same settings, which are continued."""
    if not out.exists():
        return
    if not out.is_dir():
        raise InvalidInput(f"--out {out} is a file. Give a folder.")
    if (out / SETTINGS).is_file():
        before = read_json(out / SETTINGS, "file of settings", f"the {SETTINGS} that tacit generate wrote")
        changed = [
            name for name in settings if not isinstance(before, dict) or before.get(name) != settings[name]
        ]
        if changed:
            raise InvalidInput(
                f"{out} contains samples with other settings. Different from {out / SETTINGS}: "
                f"{', '.join(changed)}. Use the same settings to continue, or choose another folder with "
                "--out."
            )
    elif others := sorted(entry.name for entry in out.iterdir() if not entry.name.startswith(".")):
        raise InvalidInput(
            f"the folder {out} is not empty: it contains {others[0]}. Choose another folder with --out."
        )


def _read_prompts(path: Path) -> Iterator[Prompt]:
    """Yield the prompts of a file; errors name a line, and print none of it."""
    if not is_json(path):
        try:
            lines = path.read_text(encoding="utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as problem:
            raise InvalidInput(
                f"cannot read the prompts in {path}: {reason_of(problem)}. Give a UTF-8 file with one "
                "prompt per line, or JSON lines named .jsonl."
            ) from None
        rows: Sequence[Prompt] = [{"prompt": line.removesuffix("\r")} for line in lines if line.strip()]
    else:
        rows = list(lines_of_json(path))
    if not rows:
        raise InvalidInput(f"{path} contains no prompt. Write one per line.")
    for number, row in enumerate(rows, 1):
        where = f"prompt {number:,} of {path}"
        _check_prompt(row, where)
        yield row


def _check_prompt(row: Prompt, where: str) -> None:
    prompt, messages = row.get("prompt"), row.get("messages")
    if (prompt is None) == (messages is None):
        raise InvalidInput(
            f'{where} needs either "prompt", a string, or "messages", a list of '
            f'{{"role": "user", "content": "..."}}.'
        )
    if "completion" in row:
        raise InvalidInput(
            f'{where} has a "completion", so it may be a training record. Prompts must be public. Remove '
            "the field."
        )

    is_chat = messages and messages_of(messages) == messages
    if messages is not None and not (is_chat and messages[-1]["role"] != "assistant"):
        raise InvalidInput(
            f'{where}: "messages" must be a list of {{"role": "...", "content": "..."}} with string '
            "contents, and must not end with the assistant."
        )
    if messages is None and not isinstance(prompt, str):
        raise InvalidInput(f"{where} is not a string. Quote it.")
    texts: list[Any] = [prompt] if messages is None else [one["content"] for one in messages]
    if any("\ud800" <= character <= "\udfff" for text in texts for character in text):
        raise InvalidInput(
            f"{where} contains an invalid Unicode character (an unpaired surrogate). Correct it."
        )


def write_texts(wanted: Generation, progress: Callable[[int], None] = lambda _done: None) -> int:
    """Generate the samples that the folder lacks, and return the number of all.

    ``progress`` gets the number of texts that are in the file. After an interrupt the file holds whole
    batches, and the same request continues with the next one.
    """
    tokens = Tokens(wanted.folder)
    prompts = _encoded(wanted, tokens)
    with _sole_writer(wanted.out):
        _write_beside(wanted)
        path = wanted.out / TEXTS
        done, size = _kept(path, wanted)
        progress(done)
        if done == wanted.total:
            return done

        write = _writer(wanted, tokens, prompts)
        with path.open("ab") as file:
            file.truncate(size)
            while done < wanted.total:
                numbers = range(done, min(done + wanted.batch_size, wanted.total))
                rows = [wanted.prompts[number // wanted.count] for number in numbers]
                pairs = zip(rows, write(numbers), strict=True)
                lines = [json.dumps(_with_text(row, text), ensure_ascii=False) + "\n" for row, text in pairs]
                file.write("".join(lines).encode())
                file.flush()
                done += len(numbers)
                progress(done)
    return done


def _encoded(wanted: Generation, tokens: Tokens) -> list[list[int]]:
    """Return the tokens of each prompt, and refuse those after which no token fits."""
    places = wanted.config.data.sequence_length or 0
    found = []
    for number, prompt in enumerate(wanted.prompts, 1):
        messages = prompt.get("messages")
        if "prompt" in prompt and wanted.config.data.messages is not None:
            messages = [{"role": "user", "content": prompt["prompt"]}]  # as the run has seen prompts
        if messages is not None:
            row = tokens.chats.begin(messages, f"prompt {number:,}")
        else:
            row = tokens.begin(prompt.get("prompt", ""))
        if not row:
            raise InvalidInput(
                "the tokenizer has no beginning-of-text token, so samples need prompts. Give a file with "
                "--prompts."
            )
        if wanted.max_new_tokens is None and len(row) >= places:
            raise InvalidInput(
                f"prompt {number:,} has {len(row)} tokens, and records of the run have at most {places}, so "
                "no new token fits. Shorten it, or set --max-new-tokens to exceed the training length."
            )
        found.append(row)
    return found


@contextmanager
def _sole_writer(out: Path) -> Iterator[None]:
    out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(out / ".lock", timeout=0):
            yield
    except Timeout:
        raise InvalidInput(
            f"another process is writing to {out}. Wait for it, or choose another folder with --out."
        ) from None


def _write_beside(wanted: Generation) -> None:
    settings = json.dumps(wanted.settings(), indent=1, ensure_ascii=False) + "\n"
    write_atomically(wanted.out / SETTINGS, lambda file: file.write(settings.encode()))
    for name in _STATEMENTS:
        shutil.copyfile(wanted.run / name, wanted.out / name)


def _kept(path: Path, wanted: Generation) -> tuple[int, int]:
    """Return the number of texts in whole batches of the file, and their bytes.

    A killed process may have written a part of a line.
    """
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    done = sum(line.endswith(b"\n") for line in lines)
    if done != wanted.total:
        done -= done % wanted.batch_size
    return done, sum(map(len, lines[:done]))


def _writer(
    wanted: Generation, tokens: Tokens, prompts: Sequence[Sequence[int]]
) -> Callable[[Sequence[int]], list[str]]:
    """Load the model, and return a function that writes the texts with the given numbers."""
    from tacit.pretrained.networks import config_of  # imports torch
    from tacit.runs.completing import complete, stops_of
    from tacit.runs.language_model import facts_of, trained_network
    from tacit.runs.model import begin_from, device_of

    device_of(wanted.device, "device")
    width = max(map(len, prompts))
    longest = wanted.max_new_tokens or (wanted.config.data.sequence_length or 0) - width
    most = getattr(config_of(wanted.folder, str(wanted.folder.path)), "max_position_embeddings", None)
    if isinstance(most, int) and width + longest > most:
        raise InvalidInput(
            f"the model reads at most {most} tokens. The longest prompt has {width}, so {longest} new tokens "
            "do not fit. Shorten the prompt, or lower --max-new-tokens."
        )
    if wanted.config.lora.rank is not None:
        begin_from(
            wanted.run / BASE, facts_of(wanted.config, wanted.folder), str(wanted.folder.path), resumed=True
        )
    network = trained_network(wanted.config, wanted.run, wanted.device)
    stop = stops_of(network, tokens.end)

    def write(numbers: Sequence[int]) -> list[str]:
        written = complete(
            network,
            [prompts[number // wanted.count] for number in numbers],
            stop=stop,
            padding=tokens.padding,
            longest=longest,
            seeds=[wanted.seed_of(number) for number in numbers],
            temperature=wanted.temperature,
            top_p=wanted.top_p,
        )
        return [tokens.decode(row) for row in written]

    return write


def _with_text(prompt: Prompt, text: str) -> dict[str, Any]:
    """Return the line of a text, in the form of a record that a run could train on."""
    if "messages" in prompt:
        return {**prompt, "messages": [*prompt["messages"], {"role": "assistant", "content": text}]}
    return {**prompt, "completion" if "prompt" in prompt else "text": text}
