"""Canaries: lines with random secrets among a run's records, to test what a text model remembers."""

# The run's key determines them, so that a resumed run has the same ones.  They are stored in the run's
# private folder: an attacker must not know them, and they must not be released with the model.

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.audits.attacks import Canary, SecretSpace, plant_canaries, planted_records
from tacit.errors import InvalidInput, PrivacyRefusal, reason_of
from tacit.files import write_atomically
from tacit.noise.generator import Generator, Purpose
from tacit.runs.config import Config
from tacit.runs.sections import NAMES_ALPHABET, NAMES_LONGEST, CanariesSection, DataSection

if TYPE_CHECKING:  # the section is checked without torch
    from tacit.datasets import Dataset


def secret_space(section: CanariesSection) -> SecretSpace:
    return SecretSpace(section.alphabet, section.length)


def draw_canaries(config: Config, generator: Generator) -> tuple[Canary, ...]:
    """Draw the canaries of a run with the generator's key; empty if the configuration plants none."""
    section, characters = config.canaries, check_canaries(config)
    if characters is None:
        return ()
    rng = generator.numpy(purpose=Purpose.CANARIES, step=0)
    count = sum(section.count)
    tags = SecretSpace(letters_of(characters), tag_length(characters, count))
    drawn = rng.choice(tags.size, count, replace=False)  # distinct tags
    prefixes = (section.prefix.replace(TAG, tags.secret(int(place))) for place in drawn)
    return tuple(
        canary
        for copies, count in zip(section.copies, section.count, strict=True)
        for canary in plant_canaries(
            secret_space(section), list(itertools.islice(prefixes, count)), copies, rng
        )
    )


def with_canaries(data: Dataset, canaries: Sequence[Canary]) -> Dataset:
    lines = planted_records(canaries)
    if not lines:
        return data
    import torch

    from tacit.datasets import Cutting, TensorPair
    from tacit.datasets.text import Alphabet, sequence_pair, token_pair

    if data.spelling is not None:
        cutting = Cutting(data.input_shape[0], "first", padding=0)
        planted = sequence_pair([data.spelling.encode(line) for line in lines], cutting)
    else:
        planted = token_pair(lines, Alphabet(data.alphabet), data.input_shape[0] - 1)
    train = TensorPair(*(torch.cat(parts) for parts in zip(data.train, planted, strict=True)))
    return replace(data, train=train)


def save_canaries(canaries: Sequence[Canary], path: Path) -> None:
    text = json.dumps([asdict(canary) for canary in canaries], indent=1, ensure_ascii=False)
    write_atomically(path, lambda file: file.write(text.encode()), mode=0o600)


def read_canaries(path: Path, config: Config) -> tuple[Canary, ...]:
    section = config.canaries
    if not section.count:
        return ()
    try:
        canaries = tuple(Canary(**one) for one in json.loads(path.read_text(encoding="utf-8")))
        space = secret_space(section)
        for canary in canaries:
            space.position(canary.secret)
    except FileNotFoundError:
        raise InvalidInput(
            f"{path}, with the planted canaries, is missing. Restore the file, or train again."
        ) from None
    except (OSError, ValueError, TypeError) as problem:
        raise InvalidInput(
            f"{path} cannot be read as canaries: {reason_of(problem)}. Train the run again."
        ) from None
    counts = [sum(canary.copies == copies for canary in canaries) for copies in section.copies]
    if counts != section.count or len(canaries) != sum(counts):
        raise InvalidInput(
            f"{path} contains other canaries than [canaries] describes. It may come from another run. "
            "Restore the file."
        )
    return canaries


TAG = "{name}"
"""The placeholder in the prefix, which each canary replaces by its random tag."""
_PRINTABLE = "".join(map(chr, range(32, 127)))
_MOST_SECRETS = 2**62
_LARGEST_SHARE = 0.2  # of the number of records, since a model learns nothing useful from canaries


def check_canaries(config: Config) -> str | None:
    """Check the section, and return the characters that records may hold; None without canaries."""
    section = config.canaries
    if not section.count:
        if section.model_fields_set:
            raise InvalidInput(
                "[canaries] count is missing or empty. Give the number of canaries for each number of "
                "copies, such as count = [60, 20, 10] for copies = [1, 4, 16]."
            )
        return None
    alphabet, longest = _declared(config.data)
    if config.privacy.adjacency != "add-remove":
        raise PrivacyRefusal(
            '[canaries] need adjacency = "add-remove", because they are added or left out at random; '
            f"{config.privacy.adjacency} fixes the number of records. Change adjacency, or remove [canaries]."
        )
    if len(section.count) != len(section.copies) or len(set(section.copies)) < len(section.copies):
        raise InvalidInput(
            f"[canaries] count = {section.count} does not fit copies = {section.copies}. Give one count for "
            "each value of copies, and repeat no value."
        )
    if section.prefix.count(TAG) != 1:
        raise InvalidInput(
            f'[canaries] prefix = "{section.prefix}" must contain {TAG} exactly once. Each canary puts its '
            "own random tag there. Change prefix."
        )
    if len(set(letters_of(alphabet))) < 2:
        raise InvalidInput(
            f"[data] alphabet = {alphabet!r} has too few characters to tell [canaries] apart. Declare at "
            "least two besides the space, or remove [canaries]."
        )
    needed = section.prefix.replace(TAG, "") + section.alphabet
    if missing := [character for character in needed if character not in alphabet]:
        raise InvalidInput(
            f"[canaries] use {missing[0]!r}, which is not in the alphabet of the records. Add it to [data] "
            "alphabet, or change prefix and alphabet. Canaries in documents must be ASCII."
        )
    if len(section.alphabet) ** section.length > _MOST_SECRETS:
        raise InvalidInput(
            f"[canaries] length = {section.length} allows more secrets than Tacit can count. Choose a "
            "smaller length."
        )
    tag = tag_length(alphabet, sum(section.count))
    characters = len(section.prefix) - len(TAG) + tag + section.length
    if characters > longest:
        raise InvalidInput(
            f"a canary has {characters} characters, but the longest record has {longest}. Shorten [canaries] "
            "prefix or length, or raise [data] longest."
        )
    most = sum(count * copies for count, copies in zip(section.count, section.copies, strict=True))
    if most > _LARGEST_SHARE * config.privacy.records:
        raise InvalidInput(
            f"[canaries] can add {most} lines to {config.privacy.records} records. At most "
            f"{100 * _LARGEST_SHARE:g} % are allowed, because they teach the model nothing. Lower count or "
            "copies."
        )
    return alphabet


def _declared(section: DataSection) -> tuple[str, int]:
    """Return the alphabet of a text and the maximum length of its lines, from the configuration alone."""
    if section.name == "names":
        return NAMES_ALPHABET, NAMES_LONGEST
    if section.corpus is not None and section.text is None:
        raise InvalidInput(
            "[canaries] are documents, but this run trains on examples with answers. Remove [canaries], or "
            "set [data] text."
        )
    if section.corpus is not None and section.sequence_length is not None:
        return _PRINTABLE, section.sequence_length  # one token for each character
    if section.text is None or section.alphabet is None or section.longest is None:
        raise InvalidInput(
            "[canaries] need lines of text. Set [data] text with alphabet and longest, or jsonl, or name = "
            '"names".'
        )
    return section.alphabet, section.longest


def letters_of(characters: str) -> str:
    """Return the characters to use in tags: letters if there are at least two, else all but the space."""
    letters = "".join(character for character in characters if character.isalpha())
    return letters if len(letters) > 1 else characters.replace(" ", "")


def tag_length(characters: str, count: int) -> int:
    """Return the tag length for which at least four times ``count`` different tags exist."""
    length = 2
    while len(letters_of(characters)) ** length < 4 * count:
        length += 1
    return length


def check_nothing_planted(config: Config) -> None:
    if config.data.rows_per_user is not None:
        raise InvalidInput(
            "`tacit batches` does not support [data] rows_per_user: it draws single sequences, not people "
            "with several. Train without --batches."
        )
    if config.data.text is None:
        raise InvalidInput(
            "`tacit batches` needs documents, but [data] text is not set. Train without --batches."
        )
    if config.data.date is not None:
        raise InvalidInput(
            "`tacit batches` does not support [data] date, because it draws at random. Train without "
            "--batches."
        )
    for name, value in (("[audit] slots", config.audit.slots), ("[canaries]", config.canaries.count)):
        if value:
            raise InvalidInput(
                f"`tacit batches` cannot add the canaries of {name} to the records. Remove {name}, or "
                "train without --batches."
            )
