"""A disk that is full after some bytes, at every step of a charge: a separate program, for a mount.

Room is taken away in two ways: by the limit on the size of a file, which any process may set for itself,
and by filling up a small file system, for which ``on_a_small_disk`` starts this program in a namespace of its
own.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tacit.events import ApproximateDP
from tacit.ledger import Ledger, LedgerUnavailable, Policy, PureBudget
from tacit.ledger.records import Charge

Squeeze = Callable[[Path, int], AbstractContextManager[None]]
"""Leaves this number of bytes free for the ledger in a folder, while it is entered."""

EVENT = ApproximateDP(0.1)
POLICY = Policy(unit="row", adjacency="add-remove", budget=PureBudget(1.0))
TOKEN = "a secret of the client's own"
NOTHING = Charge(0, "", "", "", (), None, datetime.fromtimestamp(0, UTC))


@contextmanager
def limited(folder: Path, room: int) -> Iterator[None]:
    """No file may be written to past the size that the write-ahead log has now, and ``room``."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    log = (folder / "ledger.db-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (log + room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def filled(folder: Path, room: int) -> Iterator[None]:
    """A file takes all of the file system but ``room``."""
    ballast = folder.with_name("ballast")
    with ballast.open("wb") as file:
        while shutil.disk_usage(folder).free > room:
            file.write(bytes(4096))
            file.flush()
    try:
        yield
    finally:
        ballast.unlink()


def reserve(ledger: Ledger) -> Charge:
    return ledger.reserve("visits", EVENT, key="q", request={}, token=TOKEN, lease_s=1e-6)


Step = Callable[[Ledger, Charge], Any]
"""What is done to a ledger and the charge that is held there."""

STEPS: dict[str, tuple[Step, bool, str]] = {
    "reserve": (lambda ledger, _: reserve(ledger), False, "RESERVED"),
    "resume": (lambda ledger, _: ledger.resume("visits", "q", TOKEN, lease_s=1e-6), True, "RESERVED"),
    "settle": (lambda ledger, held: ledger.settle(held, "x" * 9000), True, "SETTLED"),
    "forfeit": (lambda ledger, held: ledger.forfeit(held), True, "FORFEITED"),
    "recover": (lambda ledger, _: ledger.recover("visits"), True, "FORFEITED"),
    "register a content": (lambda ledger, _: ledger.register_content("visits", "0" * 64), False, ""),
    "open a data set": (lambda ledger, _: ledger.open_dataset("more", POLICY), False, ""),
    "raise the cap": (
        lambda ledger, _: ledger.raise_cap("visits", PureBudget(2.0), reason="test", by="test"),
        False,
        "",
    ),
}
"""What is done, whether a charge is held before, and its state afterwards."""


def full_disk(
    folder: Path, squeeze: Squeeze, *, grain: int, steps: Sequence[str] = tuple(STEPS)
) -> dict[str, int]:
    """Take every step with room for 0, 1, 2, ... times ``grain`` bytes, until it succeeds.

    Each failure must be a ``LedgerUnavailable`` that has changed nothing and told the balance all the while;
    with room again, the same ledger takes the same step.  Returns how often each step failed.
    """
    base = folder / "base"
    base.mkdir()
    with closing(Ledger.create(base / "ledger.db")) as ledger:
        ledger.open_dataset("visits", POLICY)
        for number in range(3):
            ledger.settle(ledger.reserve("visits", EVENT, key=str(number), request={}), number)
    failures = {}
    for name in steps:
        room = 0
        while not fits(folder, squeeze, room * grain, *STEPS[name]):
            room += 1
        failures[name] = room
    return failures


def failure(step: Step, ledger: Ledger, held: Charge) -> LedgerUnavailable | None:
    """Return the error of a step; None if it succeeded."""
    try:
        step(ledger, held)
    except LedgerUnavailable as problem:
        return problem
    return None


def fits(folder: Path, squeeze: Squeeze, room: int, step: Step, holds: bool, after: str) -> bool:
    """Return whether a step succeeds with ``room`` free bytes; if not, it must fail as ``full_disk`` says."""
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder / "base", copy)
    with closing(Ledger.open(copy / "ledger.db")) as ledger:
        held = reserve(ledger) if holds else NOTHING
        ledger.anchor("visits")
        state = ledger.history("visits"), ledger.datasets()
        with squeeze(copy, room):
            problem = failure(step, ledger, held)
            same = (ledger.history("visits"), ledger.datasets()) == state
        done = problem is None
        assert done or "Nothing may be released" in str(problem), problem
        assert done or same, "it failed, and did something"
        if not done:
            step(ledger, held)
        assert all(ledger.verify(each.name).ok for each in ledger.datasets())
    with closing(Ledger.open(copy / "ledger.db")) as ledger:
        assert ledger.verify("visits").ok
        if after:
            assert reserve(ledger).state == after
            assert ledger.status("visits").spent == (4 * 10**11,)
    return done


# --- a small file system ----------------------------------------------------------------------------------

_ALONE = ["unshare", "--user", "--map-root-user", "--mount"]


def missing() -> str:
    """Return the reason why nothing can be mounted here; empty if it can."""
    if shutil.which("unshare") is None:
        return "unshare is not installed"
    mount = [*_ALONE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    tried = subprocess.run(mount, capture_output=True, check=False)
    return "" if tried.returncode == 0 else "nothing may be mounted here"


def on_a_small_disk(folder: Path, *, steps: Sequence[str] = tuple(STEPS)) -> dict[str, int]:
    """``full_disk`` on a file system of 2 MiB, mounted at ``folder`` for this program alone."""
    mount = f'mount -t tmpfs -o size=2m tmpfs "$1" && exec "{sys.executable}" "{__file__}" "$@"'
    program = [*_ALONE, "sh", "-ec", mount, "sh", str(folder), *steps]
    done = subprocess.run(program, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


if __name__ == "__main__":
    found = full_disk(Path(sys.argv[1]), filled, grain=4096, steps=sys.argv[2:])
    sys.stdout.write(json.dumps(found) + "\n")
