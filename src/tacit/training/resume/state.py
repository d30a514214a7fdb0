"""The resume state of a run, and the identity of the run that it belongs to.

The state is written as a whole, and only its owner can read it.  Resuming with another loss would add the
same noise to another sum.  So the state records digests of its loss, model and augmentation.  A digest covers
their code (without file names, line numbers, comments and docstrings), and the values that they read, as
these are when the session is made.  It covers the user's functions and classes in full, and those of
libraries (all that is installed) by name and version.

**Guarantee**

* Losses have different digests if they differ in code, or in one of these: defaults, bound arguments,
  variables of the enclosing functions, global variables, attributes of their objects and modules.  This holds
  for values that are numbers, texts, types, tensors, arrays or functions, or lists, dictionaries and sets of
  them.
* The digest is the same in another process, whatever the addresses in memory and the order of sets.

**Not covered**

* Enclosing and global variables that a function writes itself, such as a count of its calls.
* Most numbers of a very large tensor: at most 2^20 numbers are read, evenly spaced.  For lists, dictionaries
  and sets of more than 4,096 items, only the number of items counts.
* Attributes of objects that the code does not name.  The code of a library is not read, nor are the
  attributes of its objects, except for modules and data classes.
* Tensors of the trained model that are not parameters, because its first forward pass may have made them.
* Compiled code (C, TorchScript), and values that a loss reads when it runs: files, environment, clocks, and
  modules that it imports.
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import pickle
import re
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.files import write_atomically
from tacit.noise.generator import Generator
from tacit.training.data.records import Records
from tacit.training.part import Part
from tacit.training.resume.digests import Reader


@final
class Identity:
    """The digest of the code of ``thing``: of ``__call__``, and of the methods named in ``calls``.

    ``thing`` may read the trained ``model``, whose weights are left out because they change.

    >>> def loss(model, x, scale=2.0):
    ...     return scale * model(x).square().sum(1)
    >>> def again(model, x, scale=2.0):
    ...     # with a comment
    ...     return scale * model(x).square().sum(1)
    >>> key = bytes(16)
    >>> Identity(loss).under(key) == Identity(again).under(key)
    True
    >>> again.__defaults__ = (3.0,)
    >>> Identity(loss).under(key) == Identity(again).under(key)
    False
    """

    def __init__(self, thing: object, model: nn.Module | None = None, *, calls: Iterable[str] = ()) -> None:
        names = frozenset(calls)
        tensors: dict[int, tuple[object, bytes]] = {}
        while True:  # a walk may read code that names more attributes, which the next walk then reads
            reader = Reader(names, model, tensors)
            self._digest = reader.of(thing)
            if reader.names_read <= names:
                break
            names |= reader.names_read
        self.versions: dict[str, str] = reader.versions
        """The versions of Python and of the libraries that ``thing`` uses."""

    def under(self, key: bytes) -> str:
        """Return the digest under a key.  Without the key, nobody can test a guess about a value by it."""
        return hashlib.blake2b(self._digest, key=key, digest_size=16).hexdigest()


@final
class Code(Part):
    """The digests of loss, model, augmentation and collate function, as they are before the first call.

    Args:
        model, loss, augmentation, collate: the arguments of the session.
    """

    def __init__(self, model: nn.Module, loss: object, augmentation: object, collate: object) -> None:
        self._code = {
            "loss": Identity(loss, model),
            "code": Identity(model, model),
            "augmentation": Identity(augmentation, calls=("draws", "views")),
        }
        if collate is not None:
            self._code["collate"] = Identity(collate)

    def facts(self, key: bytes) -> dict[str, Any]:
        codes: dict[str, Any] = {name: identity.under(key) for name, identity in self._code.items()}
        versions = {k: v for identity in self._code.values() for k, v in identity.versions.items()}
        return {**codes, "versions": versions}


_RECORDS = "the records (compared by a keyed digest: their number, order, types or values)"
_WORDS = {
    "plan": "the plan",
    "event": "the plan",
    "records": _RECORDS,
    "dates": _RECORDS,
    "parameters": "the model",
    "model": "the model",
    "code": "the code or the settings of the model",
    "loss": "the loss (its code, or a value that it reads)",
    "optimizer": "the optimizer",
    "engine": "the engine",
    "physical": "physical_batch_size",
    "augmentation": "the augmentation",
    "collate": "the collate function",
    "structure": "the structure of the records",
    "ema": "ema_decay",
    "slots": "the audit slots",
    "noise": "the device that draws the noise",
    "ranks": "the number of processes",
    "layout": "how the model is sharded",
    "done": "the number of steps taken",
}
_OF_CODE = ("code", "loss", "augmentation", "collate")
_DIGESTS = (*_OF_CODE, "records", "dates", "event", "parameters", "model", "plan")
_LONGEST = 120  # characters of a model that a message shows


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Describe the facts of a run that differ from before, with both values.

    For records, losses and code only digests are known, so their values are not shown.

    >>> before, now = {"loss": "1f", "versions": {"python": "3.11"}}, {"python": "3.12"}
    >>> differences(before, {**before, "loss": "2e"})
    ['the loss (its code, or a value that it reads)']
    >>> differences(before, {"loss": "2e", "versions": now})  # each version compiles differently
    ['the version of python (3.11, now 3.12)']
    >>> differences({"ema": None, "versions": {}}, {"ema": 0.9, "versions": {}})
    ['ema_decay (was None, is 0.9)']
    """
    then, today = before["versions"], now["versions"]
    changed = [name for name in then if name in today and then[name] != today[name]]
    lines = [f"the version of {name} ({then[name]}, now {today[name]})" for name in changed]
    changes: dict[str, list[str]] = {}
    for fact in sorted((before.keys() | now.keys()) - {"versions"}):
        comparable = fact not in _OF_CODE or "python" not in changed
        if comparable and before.get(fact) != now.get(fact):
            change = _change_of(fact, before.get(fact), now.get(fact))
            changes.setdefault(_WORDS.get(fact, fact), []).extend([change] if change else [])
    return lines + [
        f"{words} ({'; '.join(change)})" if change else words for words, change in changes.items()
    ]


def _change_of(fact: str, before: Any, now: Any) -> str:
    """Describe the old and the new value of a fact; empty for facts that are digests."""
    match fact:
        case "plan":
            return _changes(_arguments(before), _arguments(now))
        case "ranks":
            return f"was {before or 1}, is {now or 1}"
        case "parameters":
            return _changes(*(dict(ast.literal_eval(shapes)) for shapes in (before, now)))
        case "model":
            lines = zip_longest(before.splitlines(), now.splitlines(), fillvalue="nothing")
            old, new = next(pair for pair in lines if pair[0] != pair[1])
            return f"was {old.strip()[:_LONGEST]}, is {new.strip()[:_LONGEST]}"
    return "" if fact in _DIGESTS else f"was {before}, is {now}"


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return "; ".join(
        f"{name} was {before.get(name, 'not there')}, is {now.get(name, 'gone')}" for name in names
    )


def _arguments(call: str) -> dict[str, str]:
    """Read the arguments from the ``repr`` of a plan, by name.

    >>> _arguments("Plan(adjacency=<Adjacency.ADD_REMOVE: 'add-remove'>, clipping=FlatClipping(norm=1.0))")
    {'adjacency': "'add-remove'", 'clipping': 'FlatClipping(norm=1.0)'}
    """
    plain = re.sub(r"<\w+\.\w+: ('[^']*')>", r"\1", call)  # the repr of an adjacency
    tree = ast.parse(plain, mode="eval").body
    keywords = tree.keywords if isinstance(tree, ast.Call) else []
    return {str(keyword.arg): ast.unparse(keyword.value) for keyword in keywords}


_FORMAT = 7
_EARLIER = {6: "0.2.0"}
"""Earlier formats, and the versions of Tacit that wrote them."""


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Save a resume state.  Only its owner can read it, because it holds the key of the noise."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    buffer = io.BytesIO()  # torch would hide an error of the file system, such as a full disk
    torch.save({"format": _FORMAT, **state}, buffer)
    write_atomically(path, lambda file: file.write(buffer.getbuffer()), mode=0o600)


def add_to_state(path: Path, key: bytes, facts: Mapping[str, Any]) -> None:
    """Add ``facts`` to the resume state at ``path``, if it still exists and has this ``key``."""
    if path.exists() and (state := load_state(path))["key"] == key:
        save_state(path, {**state, **facts})


def load_state(path: Path) -> dict[str, Any]:
    """Load a resume state; nothing in it is executed.

    Raises:
        InvalidInput: there is no state, it is damaged, or another version of Tacit wrote it.
    """
    try:
        content = io.BytesIO(path.read_bytes())  # errors from here on come from the content
    except FileNotFoundError:
        raise InvalidInput(
            f"there is no resume state at {path}. Give the path that session.save wrote to."
        ) from None
    except OSError as problem:
        raise InvalidInput(
            f"the resume state {path} cannot be read: {problem.strerror}. Give the path of the file that "
            "session.save wrote, and let this user read it."
        ) from None
    try:
        state = torch.load(content, weights_only=True, map_location="cpu")
    except (RuntimeError, EOFError, OSError, LookupError, TypeError, ValueError, pickle.UnpicklingError):
        raise InvalidInput(
            f"{path} is not a readable resume state: it is damaged, or another program wrote it. "
            "Restore the file from a copy, or start a new run."
        ) from None
    version = state.get("format") if isinstance(state, dict) else None
    if not isinstance(state, dict) or version != _FORMAT:
        by = f"Tacit {_EARLIER[version]}, which" if version in _EARLIER else "the version that"
        raise InvalidInput(
            f"{path} is not a resume state of this version of Tacit. Finish the run with {by} wrote it, or "
            "start a new run."
        )
    return state


def check_same_run(path: Path | str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse the state at ``path`` if the facts of its run, ``before``, differ from the facts ``now``.

    Raises:
        PrivacyRefusal: facts differ; the message names them.
    """
    if differing := differences(before, now):
        raise PrivacyRefusal(
            f"the resume state {path} belongs to another run. These differ: {', '.join(differing)}. "
            "Resuming from it would add the same noise to different sums, and their difference would have "
            "no noise. Set everything as it was when that run's session was made, or start a new run."
        )


def is_trained_on(path: Path, records: Records) -> bool:
    """Return whether the run with the state at ``path`` was trained on ``records``, by its keyed digest."""
    state = load_state(path)
    return bool(json.loads(state["run"])["records"] == records.fingerprint(state["key"]))


def saved_generator(path: Path | str) -> Generator:
    """Return the generator of a saved run, which draws the same random numbers again."""
    state = load_state(Path(path))
    return Generator(state["key"], secure=state["secure"])
