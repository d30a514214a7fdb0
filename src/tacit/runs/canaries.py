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
from tacit.datasets import Alphabet, Cutting, Dataset, TensorPair
from tacit.datasets.documents import sequence_pair
from tacit.datasets.text import token_pair
from tacit.errors import InvalidInput, reason_of
from tacit.files import write_atomically
from tacit.noise.generator import Generator, Purpose
from tacit.runs.canary_section import TAG, check_canaries, letters_of, tag_length
from tacit.runs.config import CanariesSection, Config


def secret_space(section: CanariesSection) -> SecretSpace:
    """All possible secrets of a canary."""
    return SecretSpace(section.alphabet, section.length)


def draw_canaries(config: Config, generator: Generator) -> tuple[Canary, ...]:
    """The canaries of a run with this key; none if the configuration has none.

    Raises:
        InvalidInput: the section describes canaries that these records cannot hold.
        PrivacyRefusal: the coin of a canary changes the number of records, which is public.
    """
    section, characters = config.canaries, check_canaries(config)
    if characters is None:
        return ()
    alphabet = Alphabet(characters)
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
    if data.spelling is not None:
        cutting = Cutting(data.input_shape[0], "first", padding=0)
        planted = sequence_pair([data.spelling.encode(line) for line in lines], cutting)
    else:
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
        raise InvalidInput(
            f"{path} cannot be read as canaries: {reason_of(problem)}. Train the run again."
        ) from None
    counts = [sum(canary.copies == copies for canary in found) for copies in section.copies]
    if counts != section.count or len(found) != sum(counts):
        raise InvalidInput(
            f"{path} does not hold the canaries that the configuration describes. Was it copied from another "
            "run?"
        )
    return found


def _tags(alphabet: Alphabet, count: int, rng: np.random.Generator) -> list[str]:
    """Distinct names of canaries, drawn at random."""
    space = SecretSpace(letters_of(alphabet.characters), tag_length(alphabet.characters, count))
    return [space.secret(int(place)) for place in rng.choice(space.size, count, replace=False)]
