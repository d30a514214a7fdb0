"""Hashes: a hash chain that reveals changes in a history, and keyed hashes that identify contents.

The body of an entry is canonical JSON (keys sorted, no spaces, no NaN). Its hash is the SHA-256 of the
previous hash and that text. The last hash shows whether any entry was changed, added or removed.

A plain hash of a table or a question would confirm a guess, as an attacker can hash the guess and compare. A
keyed hash (HMAC-SHA-256) includes a secret of the ledger, so only a process that has the ledger can compare.
"""

from __future__ import annotations

import getpass
import hashlib
import hmac
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from tacit.errors import InvalidInput

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

GENESIS = "0" * 64
"""The hash before the first entry."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def canonical(value: object) -> str:
    """Return the canonical JSON text of ``value``.

    Raises:
        InvalidInput: if it is not JSON, such as NaN, infinity, or a dictionary with keys that are not texts.

    >>> canonical({"b": 1, "a": [True, None]})
    '{"a":[true,null],"b":1}'
    """
    _check_json(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _check_json(value: object) -> None:
    match value:
        case None | bool() | int() | str():
            return
        case float():
            if value != value or value in (float("inf"), float("-inf")):
                raise InvalidInput(f"JSON has no {value!r}. Leave it out, or write it as a text.")
        case list() | tuple():
            for item in value:
                _check_json(item)
        case Mapping():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise InvalidInput(f"keys of a JSON object are texts; got {key!r}.")
                _check_json(item)
        case _:
            raise InvalidInput(f"{value!r} is not JSON: use numbers, texts, lists and objects.")


def entry_hash(previous: str, body: str) -> str:
    """Return SHA-256 of the previous hash and the body, in hexadecimal.

    >>> entry_hash(GENESIS, "{}")[:16]
    '5649d09ed68c1715'
    """
    return hashlib.sha256(f"{previous}\n{body}".encode()).hexdigest()


def moment(microseconds: int) -> datetime:
    """Return the time in UTC of a number of microseconds since 1970.

    >>> moment(1_000_000).isoformat()
    '1970-01-01T00:00:01+00:00'
    """
    return _EPOCH + timedelta(microseconds=microseconds)


@dataclass(frozen=True)
class Entry:
    """One entry of a history.

    ``kind`` is ``open``, ``reserve``, ``settle``, ``forfeit``, ``resume``, ``refuse``, ``content``,
    ``raise-cap`` or ``burn``. ``text`` is the text that was hashed, and ``body`` is the parsed text.

    >>> from tacit.ledger import Ledger, Policy, PureBudget
    >>> ledger = Ledger.create("sqlite://")
    >>> ledger.open_dataset("visits", Policy(unit="patient", adjacency="add-remove", budget=PureBudget(1.0)))
    >>> (entry,) = ledger.history("visits")
    >>> entry.seq, entry.kind, entry.prev_hash == GENESIS
    (0, 'open', True)
    """

    seq: int
    kind: str
    body: Mapping[str, Any]
    time: datetime
    prev_hash: str
    hash: str
    text: str


@dataclass(frozen=True)
class Anchor:
    """The number and hash of the last entry of a history, to be kept outside the ledger.

    It reveals later whether an old backup was restored or the history was rewritten.

    >>> anchor = Anchor("6f1c", "visits", 12, "ab" * 32)
    >>> Anchor.parse(str(anchor)) == anchor
    True
    """

    ledger: str
    dataset: str
    seq: int
    hash: str

    def __str__(self) -> str:
        return f"{self.ledger}:{self.dataset}:{self.seq}:{self.hash}"

    @classmethod
    def parse(cls, text: str) -> Anchor:
        """Read an anchor from the text ``ledger:dataset:seq:hash``.

        Raises:
            InvalidInput: if the text is not an anchor.
        """
        parts = text.strip().split(":")
        right = len(parts) == 4 and all(parts) and re.fullmatch(r"[0-9]{1,18}", parts[2])
        if not right or len(parts[3]) != 64:
            raise InvalidInput(f"an anchor is ledger:dataset:number:hash, as tacit prints it; got {text!r}.")
        return cls(parts[0], parts[1], int(parts[2]), parts[3].lower())


def keyed_hash(secret: bytes, content: Iterable[bytes | memoryview]) -> str:
    """Return HMAC-SHA-256 of the joined pieces of ``content``, in hexadecimal.

    **Guarantee**

    * The hash depends on the bytes alone, not on how they are cut into pieces.
    * Without ``secret`` no guess at the content can be confirmed.

    >>> keyed_hash(b"key", [b"ab", b"c"]) == keyed_hash(b"key", [b"abc"])
    True
    """
    digest = hmac.new(secret, digestmod=hashlib.sha256)
    for piece in content:
        digest.update(piece)
    return digest.hexdigest()


def current_user() -> str:
    """Return the name of the user who runs this process, or the user's number if there is no name.

    It is a record for people who trust each other, not a proof of identity.
    """
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # no such account, as in many containers
        return f"user {os.getuid()}" if os.name == "posix" else "unknown user"
