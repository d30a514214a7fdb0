"""What does a model of text remember? Canaries: lines with random secrets among the records of a run.

The run's key determines them, so that a resumed run has the same.  They are stored in the run's private
folder: an attacker must not know what was planted, and nobody may release it with the model.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from tacit.attacks.memorisation import Canary, SecretSpace, plant_canaries, planted_records
from tacit.datasets import Alphabet, Dataset, TensorPair
from tacit.datasets.lines import NAMES_ALPHABET, NAMES_LONGEST
from tacit.datasets.text import token_pair
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.noise.generator import Generator, Purpose
from tacit.runs.config import CanariesSection, Config, DataSection
from tacit.training.files import write_atomically

__all__ = ["TAG", "draw_canaries", "read_canaries", "save_canaries", "secret_space", "with_canaries"]

TAG = "{name}"
"""The place of the canary's name in its prefix."""
_MOST_SECRETS = 2**62
_LARGEST_SHARE = 0.2  # of the records that may be canaries: a model learns nothing useful from them


def secret_space(section: CanariesSection) -> SecretSpace:
    """All possible secrets of a canary."""
    return SecretSpace(section.alphabet, section.length)


def draw_canaries(config: Config, generator: Generator) -> tuple[Canary, ...]:
    """The canaries of a run with this key; none if the configuration has none.

    Raises:
        InvalidInput: the section describes canaries that these records cannot hold.
        PrivacyRefusal: the coin of a canary changes the number of records, which is public.
    """
    section = config.canaries
    if not section.count:
        _refuse_without_count(section)
        return ()
    alphabet = _checked(config)
    rng = generator.numpy(purpose=Purpose.CANARIES, step=0)
    tags = iter(_tags(alphabet, sum(section.count), rng))
    prefixes = (section.prefix.replace(TAG, tag) for tag in tags)
    return tuple(
        canary
        for copies, count in zip(section.copies, section.count, strict=True)
        for canary in plant_canaries(
            secret_space(section), list(itertools.islice(prefixes, count)), copies, rng
        )
    )


def with_canaries(data: Dataset, canaries: Sequence[Canary]) -> Dataset:
    """The data with the canaries whose coins say so among the training records."""
    lines = planted_records(canaries)
    if not lines:
        return data
    planted = token_pair(lines, Alphabet(data.alphabet), data.input_shape[0] - 1)
    train = TensorPair(*(torch.cat(parts) for parts in zip(data.train, planted, strict=True)))
    return replace(data, train=train)


def save_canaries(canaries: Sequence[Canary], path: Path) -> None:
    """Write the canaries to a file that its owner alone may read."""
    text = json.dumps([asdict(canary) for canary in canaries], indent=1, ensure_ascii=False)
    write_atomically(path, lambda file: file.write(text.encode()), mode=0o600)


def read_canaries(path: Path, config: Config) -> tuple[Canary, ...]:
    """The canaries that :func:`save_canaries` wrote; none if the configuration has none.

    Raises:
        InvalidInput: the file is missing or damaged, or is not of this run.
    """
    section = config.canaries
    if not section.count:
        return ()
    try:
        found = tuple(Canary(**one) for one in json.loads(path.read_text(encoding="utf-8")))
        space = secret_space(section)
        for canary in found:
            space.position(canary.secret)
    except FileNotFoundError:
        raise InvalidInput(
            f"{path} is missing, so what was planted is unknown. Restore the file, or train the run again."
        ) from None
    except (OSError, ValueError, TypeError) as problem:
        raise InvalidInput(f"{path} cannot be read as canaries: {problem}. Train the run again.") from None
    counts = [sum(canary.copies == copies for canary in found) for copies in section.copies]
    if counts != section.count or len(found) != sum(counts):
        raise InvalidInput(
            f"{path} does not hold the canaries that the configuration describes. Was it copied from another "
            "run?"
        )
    return found


def _refuse_without_count(section: CanariesSection) -> None:
    given = sorted(section.model_fields_set - {"count"})
    if given or "count" in section.model_fields_set:
        raise InvalidInput(
            "[canaries] count is missing or empty, so none would be planted. Say how many canaries for each "
            "number of copies, such as count = [60, 20, 10] for copies = [1, 4, 16]."
        )


def _checked(config: Config) -> Alphabet:
    """The alphabet of the records, in which canaries are written."""
    section = config.canaries
    alphabet, longest = _declared(config.data)
    if config.privacy.adjacency != "add-remove":
        raise PrivacyRefusal(
            f"canaries are added by a secret coin, and under {config.privacy.adjacency} the number of "
            'records is public and fixed. Take adjacency = "add-remove", or no canaries.'
        )
    if len(section.count) != len(section.copies) or len(set(section.copies)) < len(section.copies):
        raise InvalidInput(
            f"[canaries] count = {section.count} must have one number for each of copies = {section.copies}, "
            "which must all differ."
        )
    if section.prefix.count(TAG) != 1:
        raise InvalidInput(
            f'[canaries] prefix = "{section.prefix}" must hold {TAG} once: two secrets after one prefix '
            "would compete for one place."
        )
    needed = section.prefix.replace(TAG, "") + section.alphabet
    if place := alphabet.missing(needed):
        raise InvalidInput(
            f"[canaries] prefix and alphabet need {needed[place - 1]!r}, which no record may hold. Add it to "
            "[data] alphabet, or write the canaries without it."
        )
    if secret_space(section).size > _MOST_SECRETS:
        raise InvalidInput(f"[canaries] length = {section.length} makes more secrets than can be counted.")
    tag = _tag_length(alphabet, sum(section.count))
    characters = len(section.prefix) - len(TAG) + tag + section.length
    if characters > longest:
        raise InvalidInput(
            f"[canaries] have {characters} characters, and the longest record has {longest}. Take a shorter "
            "prefix or length, or a larger [data] longest."
        )
    most = sum(count * copies for count, copies in zip(section.count, section.copies, strict=True))
    if most > _LARGEST_SHARE * config.privacy.records:
        raise InvalidInput(
            f"[canaries] are up to {most} lines beside {config.privacy.records} records; at most "
            f"{100 * _LARGEST_SHARE:g} % may be, as a model learns nothing useful from them. Plant fewer."
        )
    return alphabet


def _declared(section: DataSection) -> tuple[Alphabet, int]:
    """The alphabet and the longest line of a text, before any of it is read."""
    if section.name == "names":
        return Alphabet(NAMES_ALPHABET), NAMES_LONGEST
    if section.text is None or section.alphabet is None or section.longest is None:
        raise InvalidInput(
            "[canaries] are lines of text; they need [data] text with its alphabet and longest, or "
            'name = "names".'
        )
    return Alphabet(section.alphabet), section.longest


def _letters(alphabet: Alphabet) -> str:
    """The characters of tags: letters, where there are two."""
    letters = "".join(c for c in alphabet.characters if c.isalpha())
    return letters if len(letters) > 1 else alphabet.characters.replace(" ", "")


def _tag_length(alphabet: Alphabet, count: int) -> int:
    length = 2
    while len(_letters(alphabet)) ** length < 4 * count:
        length += 1
    return length


def _tags(alphabet: Alphabet, count: int, rng: np.random.Generator) -> list[str]:
    """Distinct names of canaries, drawn at random."""
    space = SecretSpace(_letters(alphabet), _tag_length(alphabet, count))
    return [space.secret(int(place)) for place in rng.choice(space.size, count, replace=False)]
