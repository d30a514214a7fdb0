"""Canaries: records with made-up secrets, planted before training to measure what the model reveals.

A canary is a public ``prefix`` and a secret drawn uniformly from a :class:`SecretSpace`.  A fair coin, which
stays hidden until after the attack, decides whether the canary is in the data.  The other canaries are the
control group.  The secrets are random, so that the model can know them only from the training data
(Carlini et al. 2019, "The Secret Sharer", 1802.08232, section 4).

Letters: R secrets in a space, t characters in a secret, c copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InvalidInput, check_integer

Integers: TypeAlias = NDArray[np.int64]

_MOST_SECRETS = 10**7  # a table of more secrets might not fit into memory


@final
@dataclass(frozen=True)
class SecretSpace:
    """All R = len(alphabet)^t strings of t characters, in the order of the alphabet (the last changes first).

    Raises:
        InvalidInput: if the alphabet has a character twice, as some secrets would then be listed twice.

    >>> space = SecretSpace("0123456789", 5)
    >>> space.size, space.secret(42)
    (100000, '00042')
    """

    alphabet: str
    length: int

    def __post_init__(self) -> None:
        check_integer("length", self.length, low=1)
        if len(self.alphabet) < 2 or len(set(self.alphabet)) < len(self.alphabet):
            raise InvalidInput(
                f"alphabet must hold at least 2 characters, each once; got {self.alphabet!r}. A repeated "
                "character lists secrets twice."
            )

    @property
    def size(self) -> int:
        """R, the number of secrets."""
        return int(len(self.alphabet) ** self.length)

    def secret(self, position: int) -> str:
        """Return the secret at a position in [0, R)."""
        rest = check_integer("position", position, low=0, high=self.size - 1)
        characters = []
        for _ in range(self.length):
            rest, digit = divmod(rest, len(self.alphabet))
            characters.append(self.alphabet[digit])
        return "".join(reversed(characters))

    def position(self, secret: str) -> int:
        """Return the position of a secret, the inverse of :meth:`secret`.

        Raises:
            InvalidInput: if the secret is not in this space.
        """
        if len(secret) != self.length or not set(secret) <= set(self.alphabet):
            raise InvalidInput(
                f"secret must be {self.length} characters of {self.alphabet!r}; got {secret!r}."
            )
        place = 0
        for character in secret:
            place = place * len(self.alphabet) + self.alphabet.index(character)
        return place

    def digits(self, positions: Integers) -> Integers:
        """Return the characters of the secrets at (n,) positions, as (n, t) indices into the alphabet."""
        powers = len(self.alphabet) ** np.arange(self.length - 1, -1, -1, dtype=np.int64)
        table: Integers = positions[:, None] // powers % len(self.alphabet)
        return table

    def all_digits(self) -> Integers:
        """Return :meth:`digits` of all R secrets, (R, t).

        Raises:
            InvalidInput: if there are more than ten million secrets.
        """
        if self.size > _MOST_SECRETS:
            raise InvalidInput(
                f"{self.size:,} secrets are too many to list; at most {_MOST_SECRETS:,}. Draw a sample of "
                "them (sampled_exposure) or extrapolate (extrapolated_exposure)."
            )
        return self.digits(np.arange(self.size))


@dataclass(frozen=True)
class Canary:
    """A canary: ``copies`` records ``prefix + secret``, which are in the training data if ``included``.

    The prefix is public, so the attacker may know it.  Read ``included`` only after the attack.
    """

    prefix: str
    secret: str
    copies: int
    included: bool


def plant_canaries(
    space: SecretSpace, prefixes: Sequence[str], copies: int, generator: np.random.Generator
) -> list[Canary]:
    """Make a canary for each prefix, with an independent uniform secret from ``space`` and a fair coin.

    Args:
        copies: the number of records for each canary that is included.
        generator: a generator of fresh random numbers, which an attacker must not know.

    Raises:
        InvalidInput: if a prefix occurs twice, because two secrets after one prefix would compete.
    """
    check_integer("copies", copies, low=1)
    if len(set(prefixes)) < len(prefixes) or not prefixes:
        raise InvalidInput("prefixes must name at least one canary, each once: two secrets after one prefix "
                           "compete, and neither is measured alone.")  # fmt: skip
    places = generator.integers(space.size, size=len(prefixes))
    coins = generator.integers(2, size=len(prefixes)) == 1
    return [
        Canary(prefix, space.secret(int(place)), copies, bool(coin))
        for prefix, place, coin in zip(prefixes, places, coins, strict=True)
    ]


def planted_records(canaries: Sequence[Canary]) -> list[str]:
    """Return the records to add to the training data: ``copies`` of each included canary.

    >>> planted_records([Canary("pin a ", "17", 2, True), Canary("pin b ", "99", 2, False)])
    ['pin a 17', 'pin a 17']
    """
    return [
        canary.prefix + canary.secret for canary in canaries if canary.included for _ in range(canary.copies)
    ]
