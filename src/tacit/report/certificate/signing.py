"""Ed25519 signatures on certificates.

The signature covers everything but itself, as canonical JSON: UTF-8 with sorted keys and no white space. A
first line names the purpose, so that a signature for one purpose is not valid for another.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.errors import InvalidInput, needed

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_PURPOSE = b"tacit certificate, format 1\n"
_ALGORITHM = "Ed25519"


def canonical(data: Mapping[str, Any]) -> bytes:
    """Return the bytes that are signed: everything but ``signature``.

    >>> canonical({"b": 1, "a": "é", "signature": None}).decode()
    'tacit certificate, format 1\\n{"a":"é","b":1}'
    """
    rest = {name: value for name, value in data.items() if name != "signature"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return _PURPOSE + text.encode()


def make_key(path: Path) -> str:
    """Write a new private key to a file, and return the public key as 64 hexadecimal digits.

    Only the owner of the file can read it.

    Raises:
        InvalidInput: the file exists already. A key is never overwritten.
    """
    needed("cryptography", "torch", "signing")
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    pem = private.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise InvalidInput(
            f"the file {path} exists already. A key is never overwritten, as its signatures could not be "
            "checked any more. Choose another name."
        ) from None
    with os.fdopen(handle, "wb") as file:
        file.write(pem)
    return private.public_key().public_bytes_raw().hex()


def public_key_of(path: Path) -> str:
    """Return the public key of the private key in the file ``path``."""
    return _read(path).public_key().public_bytes_raw().hex()


def sign(data: Mapping[str, Any], key: Path) -> dict[str, Any]:
    """Return ``data`` with a ``signature`` by the private key in the file ``key``."""
    private = _read(key)
    signature = {
        "algorithm": _ALGORITHM,
        "public_key": private.public_key().public_bytes_raw().hex(),
        "value": private.sign(canonical(data)).hex(),
    }
    return {**data, "signature": signature}


def signature_holds(data: Mapping[str, Any]) -> bool:
    """Return whether the holder of the key in ``signature`` signed these ``data``.

    **Guarantee**

    * The result is False if any value of ``data`` differs from the value that was signed.
    * The result does not show who holds the key. Compare ``public_key`` with one that the signer gave you.
    """
    needed("cryptography", "torch", "signing")
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    signature = data["signature"]
    if signature["algorithm"] != _ALGORITHM:
        raise InvalidInput(f"a signature must be {_ALGORITHM}; got {signature['algorithm']!r}.")
    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature["public_key"]))
        public.verify(bytes.fromhex(signature["value"]), canonical(data))
    except (InvalidSignature, ValueError):
        return False
    return True


def _read(path: Path) -> Ed25519PrivateKey:
    needed("cryptography", "torch", "signing")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as problem:
        raise InvalidInput(f"the key {path} cannot be read: {problem.strerror}. Check the path.") from None
    except (ValueError, TypeError):
        key = None  # not a key, or a key with a password
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidInput(
            f"{path} is not a private Ed25519 key. It must be PEM without a password, as `tacit ledger key "
            "FILE` makes it."
        )
    return key
