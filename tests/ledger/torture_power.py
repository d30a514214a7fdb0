"""Power loss under a SQLite ledger: every state that it may leave on the disk, rebuilt from a recording.

A client is run under ``strace``, which writes down each system call that changes its folder, with the bytes.
What a power loss at a moment may leave is then: all that was synced, and of what was written since any part,
sector by sector, with any prefix of what was done to the folder itself.  POSIX promises nothing more.
``python torture_power.py '{"folder": ..., "charges": ...}'`` is the client.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from tacit.errors import InvalidInput
from tacit.events import ApproximateDP
from tacit.ledger import Ledger, Policy, PureBudget

SECTOR = 512
"""Bytes that a disk writes as one; a page of the database is eight of them."""
CALLS = (
    "openat,lseek,write,pwrite64,writev,pwritev,ftruncate,fsync,fdatasync,unlink,unlinkat,rename,renameat2"
)


def missing() -> str:
    """Return the reason why nothing can be recorded here; empty if it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(["strace", "-qq", "-o", os.devnull, "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "strace may not trace here"


# --- the client -------------------------------------------------------------------------------------------


def write(folder: Path, *, charges: int, lives: int, synchronous: str) -> None:
    """Make a ledger and charge it; ``shown`` holds the released answers, in order.

    Args:
        lives: how often the ledger is opened and closed; closing folds the log into the file.
        synchronous: ``FULL`` as the ledger sets it; anything else is a planted bug.
    """

    class Careless(sqlite3.Connection):
        def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
            return super().execute(
                statement.replace("synchronous=FULL", f"synchronous={synchronous}"), *parameters
            )

    def connect(*place: Any, **how: Any) -> sqlite3.Connection:
        return real(*place, **how, factory=Careless)

    real = sqlite3.connect
    out = os.open(folder / "shown", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    with mock.patch.object(sqlite3, "connect", connect):
        Ledger.create(folder / "ledger.db").close()
        for life in range(lives):
            with closing(Ledger.open(folder / "ledger.db")) as ledger:
                ledger.open_dataset("visits", policy())
                for number in range(charges):
                    key = f"{life}-{number}"
                    charge = ask(ledger, key)
                    os.write(out, json.dumps({"key": key, "id": charge.id}).encode())
                    ledger.settle(charge, {"count": number, "filling": "x" * 500 * (number % 7)})
                    os.write(out, json.dumps({"key": key, "id": charge.id, "answer": number}).encode())


def policy() -> Policy:
    """Room for a thousand charges."""
    return Policy(unit="row", adjacency="add-remove", budget=PureBudget(1000.0))


def ask(ledger: Ledger, key: str) -> Any:
    """Reserve one."""
    return ledger.reserve("visits", ApproximateDP(1.0), key=key, request={"key": key})


# --- the recording ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Act:
    """One change to the folder, as it was asked of the system."""

    kind: str  # "make" | "write" | "cut" | "sync" | "sync folder" | "remove" | "show"
    name: str = ""
    at: int = 0  # offset of a write, size of a cut
    data: bytes = b""


def record(folder: Path, *, charges: int, lives: int = 2, synchronous: str = "FULL") -> list[Act]:
    """Run a client in the empty ``folder``, and return what it did there."""
    order = {
        "folder": str(folder),
        "charges": charges,
        "lives": lives,
        "synchronous": synchronous,
    }
    trace = folder.with_name(folder.name + ".strace")
    strace = ["strace", "-f", "--seccomp-bpf", "-qq", "-y", "-xx", "-s", "1000000"]
    program = [sys.executable, str(Path(__file__)), json.dumps(order)]
    subprocess.run([*strace, "-e", f"trace={CALLS}", "-o", str(trace), *program], check=True)
    acts = list(read(trace, folder))
    trace.unlink()
    return acts


_CALL = re.compile(r"(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)(?:<(.*)>)?")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


def plain(text: str) -> str:
    """A path, as ``strace -xx`` prints it."""
    return bytes.fromhex(text.replace("\\x", "")).decode() if text.startswith("\\x") else text


def read(trace: Path, folder: Path) -> Iterator[Act]:
    """Return the acts of a trace in a folder; a line that it cannot read is an error."""
    for line in trace.read_text().splitlines():
        call = _CALL.match(line)
        if call is None:
            if "+++" in line or "---" in line:
                continue
            raise ValueError(f"cannot read {line[:200]!r}")
        name, inside, result = call[1], call[2], int(call[3])
        if result < 0 or (name == "openat" and "O_CREAT" not in inside):
            continue
        if name in ("openat", "unlink", "unlinkat", "rename", "renameat2"):
            path = Path(bytes.fromhex(_TEXT.findall(inside)[0].replace("\\x", "")).decode())
        else:
            opened = re.match(r"\d+<([^>]*)>", inside)
            path = Path(plain(opened[1])) if opened else Path("/")
        if path == folder and name in ("fsync", "fdatasync"):
            yield Act("sync folder")
        if path.parent != folder or path.name.endswith("-shm"):
            continue
        yield act(name, path.name, inside, result)


def act(name: str, file: str, inside: str, result: int) -> Act:
    """One call on one file of the folder."""
    match name:
        case "openat":
            return Act("make", file)
        case "unlink" | "unlinkat":
            return Act("remove", file)
        case "fsync" | "fdatasync":
            return Act("sync", file)
        case "ftruncate":
            return Act("cut", file, int(inside.rsplit(",", 1)[1]))
        case "write" if file == "shown":
            return Act("show", data=bytes.fromhex(_TEXT.findall(inside)[0].replace("\\x", ""))[:result])
        case "pwrite64":
            data = bytes.fromhex(_TEXT.findall(inside)[0].replace("\\x", ""))[:result]
            return Act("write", file, int(inside.rsplit(",", 1)[1]), data)
    raise ValueError(f"a {name} to {file} is not understood: this SQLite writes in another way")


# --- the disk ---------------------------------------------------------------------------------------------


@dataclass
class File:
    """The synced content of a file, and the writes to it since."""

    safe: bytes = b""
    since: list[Act] = field(default_factory=list)


@dataclass
class Disk:
    """The folder after some acts: its names, those that are ``safe``, what was done to them ``since``."""

    live: dict[str, File] = field(default_factory=dict)
    safe: dict[str, File] = field(default_factory=dict)
    since: list[tuple[str, File | None]] = field(default_factory=list)
    shown: list[dict[str, Any]] = field(default_factory=list)

    def do(self, act: Act) -> None:
        """One more act."""
        match act.kind:
            case "make" if act.name not in self.live and act.name != "shown":
                self.live[act.name] = File()
                self.since.append((act.name, self.live[act.name]))
            case "remove":
                del self.live[act.name]
                self.since.append((act.name, None))
            case "write" | "cut":
                self.live[act.name].since.append(act)
            case "sync":
                file = self.live[act.name]
                file.safe, file.since = applied(file.safe, file.since, lambda: True), []
            case "sync folder":
                self.safe, self.since = dict(self.live), []
            case "show":
                self.shown.append(json.loads(act.data))

    def crash(self, luck: Callable[[], bool]) -> dict[str, bytes]:
        """Files that a power loss may leave; ``luck`` says of each part not synced whether it is there."""
        names = dict(self.safe)
        for name, file in self.since:
            if not luck():
                break
            if file is None:
                del names[name]
            else:
                names[name] = file
        return {name: applied(file.safe, file.since, luck) for name, file in names.items()}


def applied(content: bytes, acts: list[Act], luck: Callable[[], bool]) -> bytes:
    """A file after those sectors of those writes that had luck."""
    found = bytearray(content)
    for act in acts:
        if act.kind == "cut":
            if luck():
                del found[act.at :]
                found.extend(bytes(act.at - len(found)))
            continue
        start = 0
        while start < len(act.data):
            stop = min(len(act.data), (act.at + start) // SECTOR * SECTOR + SECTOR - act.at)
            if luck():
                found.extend(bytes(max(0, act.at + start - len(found))))
                found[act.at + start : act.at + stop] = act.data[start:stop]
            start = stop
    return bytes(found)


def lucks(dice: random.Random, chances: int) -> list[Callable[[], bool]]:
    """Return ways to keep unsynced writes: none; all, as if only the process died; a prefix; random parts."""

    def prefix() -> Callable[[], bool]:
        left = dice.randrange(1, 60)

        def luck() -> bool:
            nonlocal left
            left -= 1
            return left >= 0

        return luck

    def often(share: float) -> Callable[[], bool]:
        return lambda: dice.random() < share

    shares = [often(dice.choice((0.1, 0.5, 0.9, 0.98))) for _ in range(chances)]
    return [lambda: False, lambda: True, prefix(), *shares]


# --- holding it up ----------------------------------------------------------------------------------------


def power_loss(acts: list[Act], folder: Path, *, chances: int, every: bool, seed: int = 0) -> dict[str, Any]:
    """Open the ledger in the states that a power loss may leave, and count those that break a promise.

    Args:
        chances: random states at each moment, in addition to the extreme ones.
        every: at each act; else around those that sync, make, remove or show something.
    """
    dice = random.Random(seed)
    disk, seen = Disk(), set()
    found: dict[str, Any] = {"acts": len(acts), "states": 0, "broken": 0, "first": None}
    for number, act in enumerate(acts):
        disk.do(act)
        following = acts[number + 1].kind if number + 1 < len(acts) else "sync"
        if not every and act.kind in ("write", "cut") and following in ("write", "cut"):
            continue
        for luck in lucks(dice, chances):
            left = disk.crash(luck)
            state = (hash(frozenset(left.items())), len(disk.shown))
            if state in seen:
                continue
            seen.add(state)
            found["states"] += 1
            broken = hold_up(left, disk.shown, folder)
            if broken:
                found["broken"] += 1
                found["first"] = found["first"] or f"after act {number} ({act.kind} {act.name}): {broken}"
    found["shown"] = len(disk.shown)
    return found


def hold_up(left: dict[str, bytes], shown: list[dict[str, Any]], folder: Path) -> str:
    """Return the promise that the ledger in these files breaks; empty if none."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in left.items():
        (folder / name).write_bytes(content)
    try:
        ledger = Ledger.open(folder / "ledger.db")
    except InvalidInput as problem:  # there is none yet
        return f"{len(shown)} lines were shown, and then: {problem}" if shown else ""
    with closing(ledger):
        if not ledger.datasets():
            return f"{len(shown)} lines were shown, and no data set is open" if shown else ""
        if not ledger.verify("visits").ok:
            return f"it does not verify: {ledger.verify('visits').problems}"
        answers: dict[str, Any] = {line["key"]: line.get("answer") for line in shown}
        for key, answer in answers.items():
            charge = ask(ledger, key)
            if charge.token is not None:
                return f"charge {key} is gone"
            if answer is not None and (charge.state != "SETTLED" or charge.answer["count"] != answer):
                return f"{key} was released with {answer}, and is {charge.state}"
        spent = ledger.status("visits").spent[0]
        ledger.settle(ask(ledger, "after"), {})
        if ledger.status("visits").spent[0] != spent + 10**12 or not ledger.verify("visits").ok:
            return "it cannot go on"
    return ""


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    write(Path(given.pop("folder")), **given)
