"""How is a content named without revealing it? By a keyed hash.

A plain hash of a table, or of a question, confirms a guess: hash the guess and compare.  This hash includes a
secret of the ledger (HMAC-SHA-256), so that only a process with that ledger can compare.
"""

from __future__ import annotations

import getpass
import hashlib
import hmac
import os
from collections.abc import Iterable


def keyed_hash(secret: bytes, content: Iterable[bytes | memoryview]) -> str:
    """HMAC-SHA-256 of the bytes in ``content`` one after the other, in hexadecimal.

    Guarantee
    ---------
    * It depends on the bytes alone, not on how they are cut into pieces.
    * Without ``secret`` no guess at the content can be confirmed.

    >>> keyed_hash(b"key", [b"ab", b"c"]) == keyed_hash(b"key", [b"abc"])
    True
    """
    digest = hmac.new(secret, digestmod=hashlib.sha256)
    for piece in content:
        digest.update(piece)
    return digest.hexdigest()


def current_user() -> str:
    """The user of this process by the operating system: a name, or a number where there is none.

    It shows who spent what among people who trust each other; it proves nothing.
    """
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # no such account, as in many containers
        return f"user {os.getuid()}" if os.name == "posix" else "unknown user"
