"""The checker of schemas refuses what it should, and signatures hold for what was signed alone."""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization as forms
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import InvalidInput
from tacit.report.certificate import canonical, make_key, public_key_of, sign, signature_holds
from tacit.report.verification import check_against, read_schema

Data = dict[str, Any]

# --- schemas ---------------------------------------------------------------------------------------------

SCHEMA: Data = {
    "type": "object",
    "required": ["a"],
    "additionalProperties": False,
    "properties": {
        "a": {"$ref": "#/$defs/positive"},
        "b": {"type": ["string", "null"], "pattern": "^x"},
        "c": {"type": "array", "minItems": 1, "items": {"enum": [1, 2]}},
        "d": {"anyOf": [{"type": "null"}, {"const": 7}]},
        "e": {"type": "object", "additionalProperties": {"type": "boolean"}},
        "f": {"type": "number", "maximum": 1},
    },
    "$defs": {"positive": {"type": "integer", "minimum": 1}},
}
RIGHT: list[Data] = [
    {"a": 1},
    {"a": 3, "b": "xy", "c": [1, 2, 1], "d": 7, "e": {"p": True}, "f": 0.5},
    {"a": 3, "b": None, "d": None, "e": {}, "f": 1},
]
WRONG: dict[str, tuple[Any, str]] = {
    "another type": ([], r"the data: \[\] is not of type 'object'\. This does not fit the schema"),
    "missing": ({}, "the data: 'a' is a required property"),
    "too small": ({"a": 0}, "the data's a: 0 is less than the minimum of 1"),
    "no integer": ({"a": 1.0}, "the data's a: 1.0 is not of type 'integer'"),
    "true is no number": ({"a": True}, "the data's a: True is not of type 'integer'"),
    "NaN is no number": ({"a": 1, "f": float("nan")}, "the data's f: nan is not of type 'number'"),
    "infinity is no number": ({"a": 1, "f": float("-inf")}, "the data's f: -inf is not of type 'number'"),
    "another name": ({"a": 1, "z": 1}, "the data: Additional properties are not allowed"),
    "not among them": ({"a": 1, "c": [1, 3]}, r"the data's c\[1\]: 3 is not one of \[1, 2\]"),
    "of another type inside": ({"a": 1, "e": {"p": 1}}, "the data's e.p: 1 is not of type 'boolean'"),
    "very long": ({"a": "x" * 9999}, "the data's a: .{300}[.] This does not fit"),
}


def test_what_is_as_the_schema_says_passes() -> None:
    for data in RIGHT:
        check_against(SCHEMA, data, what="the data")


@pytest.mark.parametrize("what", WRONG)
def test_what_is_not_is_named_with_its_place(what: str) -> None:
    data, words = WRONG[what]
    with pytest.raises(InvalidInput, match=words):
        check_against(SCHEMA, data, what="the data")


def test_the_published_schema_says_what_it_is_for() -> None:
    schema = read_schema("certificate.schema.json")
    assert schema["$schema"].endswith("2020-12/schema")
    assert set(schema["required"]) == set(schema["properties"])


# --- signatures ------------------------------------------------------------------------------------------


@pytest.fixture
def key(tmp_path: Path) -> Path:
    make_key(tmp_path / "key.pem")
    return tmp_path / "key.pem"


def test_the_order_of_names_is_no_part_of_what_is_signed_and_values_are(key: Path) -> None:
    signed = sign({"a": 1, "b": {"x": 1.5, "y": ["é", None]}}, key)
    assert signature_holds(signed)
    assert signature_holds({"signature": signed["signature"], "b": {"y": ["é", None], "x": 1.5}, "a": 1})
    for other in (
        {"a": 2}, {"b": {"x": 1.5, "y": ["é"]}}, {"b": {"x": 1.5, "y": ["e", None]}}, {"c": None},
        {"a": True},
    ):  # fmt: skip
        assert not signature_holds({**signed, **other})


def _signed(folder: str) -> Data:
    path = Path(folder) / "key.pem"
    make_key(path)
    return sign({"a": [1, 2, 3]}, path)


with tempfile.TemporaryDirectory() as _folder:
    SIGNED = _signed(_folder)


def test_every_part_of_a_certificate_is_signed(key: Path) -> None:
    data = dict.fromkeys(read_schema("certificate.schema.json")["required"], "as it was")
    signed = sign(data, key)
    for name in set(data) - {"signature"}:
        assert not signature_holds({**signed, name: "other"}), name


@given(st.integers(0, 63), st.integers(0, 7))
def test_a_signature_with_one_bit_changed_does_not_hold(place: int, bit: int) -> None:
    value = bytearray(bytes.fromhex(SIGNED["signature"]["value"]))
    value[place] ^= 1 << bit
    assert not signature_holds({**SIGNED, "signature": {**SIGNED["signature"], "value": value.hex()}})


def test_a_signature_is_the_standard_one_over_the_canonical_bytes(key: Path) -> None:
    signed = sign({"a": 1}, key)
    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key_of(key)))
    public.verify(bytes.fromhex(signed["signature"]["value"]), b'tacit certificate, format 1\n{"a":1}')
    assert canonical(signed) == canonical({"a": 1})


def test_another_key_or_another_algorithm_does_not_do(key: Path, tmp_path: Path) -> None:
    make_key(tmp_path / "other.pem")
    signed = sign({"a": 1}, key)
    others = {"public_key": public_key_of(tmp_path / "other.pem")}, {"public_key": "00"}, {"value": "00"}
    for other in others:
        assert not signature_holds({**signed, "signature": {**signed["signature"], **other}})
    with pytest.raises(InvalidInput, match="Ed25519"):
        signature_holds({**signed, "signature": {**signed["signature"], "algorithm": "RSA"}})


def test_a_private_key_is_its_owners_alone_and_never_written_over(key: Path) -> None:
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = key.read_bytes()
    with pytest.raises(InvalidInput, match="overwrites no key"):
        make_key(key)
    assert key.read_bytes() == before


def test_what_is_no_private_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        sign({}, tmp_path / "none.pem")
    (tmp_path / "text.pem").write_text("no key")
    wrong = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    pem = wrong.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())
    (tmp_path / "rsa.pem").write_bytes(pem)
    for name in ("text.pem", "rsa.pem"):
        with pytest.raises(InvalidInput, match="not a private Ed25519 key"):
            sign({}, tmp_path / name)
