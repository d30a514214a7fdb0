"""Processes that charge one ledger at once, and die of it: a program, for it forks.

``python torture_processes.py '{"what": "crowd", "url": ..., ...}'`` runs one of the functions in ``TORTURES``
and prints what it found as JSON.  With ``--serve`` it reads such orders from its standard input, one a line.
A client writes every release to a file of its own at the moment at which it would be shown; afterwards the
ledger is held against these files.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import sqlalchemy as sa

from tacit.events import ApproximateDP
from tacit.ledger import Ledger, LedgerUnavailable, Policy, PureBudget, Refused
from tacit.ledger.records import Charge
from tacit.ledger.store import Transaction

EPSILON = 0.01
GRANTS = 100
"""So many charges of ``EPSILON`` fit under a cap of 1."""

Ask = Callable[[str], bool]
"""Makes one charge under a key, and says whether it was granted."""


class Broken(Exception):
    """The ledger broke a promise."""


def demand(right: bool, otherwise: str) -> None:
    """Raise if something that must hold does not."""
    if not right:
        raise Broken(otherwise)


def policy(grants: int = GRANTS, **more: Any) -> Policy:
    """Return a policy with room for ``grants`` charges."""
    return Policy(unit="row", adjacency="add-remove", budget=PureBudget(grants * EPSILON), **more)


# --- processes --------------------------------------------------------------------------------------------


def fork(work: Callable[[], None]) -> int:
    """Start a child that does ``work``; its number.  The exit code is 1 if it raised."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    finally:
        if code:
            traceback.print_exc()
        os._exit(code)


def kill(children: list[int]) -> None:
    """SIGKILL to all, and wait until they are gone."""
    for child in children:
        os.kill(child, signal.SIGKILL)
    for child in children:
        os.waitpid(child, 0)


class Log:
    """The answers that a client has released, line by line; each line is on disk when ``write`` returns."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def write(self, **line: Any) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


def shown(folder: Path, *, clear: bool = True) -> list[dict[str, Any]]:
    """The lines of all logs in a folder; a line that a crash cut off was not shown."""
    lines: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.log")):
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        lines += [json.loads(line) for line in whole.splitlines()]
        if clear:
            path.unlink()
    return lines


# --- a crowd ----------------------------------------------------------------------------------------------


@contextmanager
def honest(url: str, _cap: float) -> Iterator[Ask]:
    """A client of the ledger."""
    with closing(Ledger.open(url)) as ledger:

        def ask(key: str) -> bool:
            try:
                charge = ledger.reserve("crowd", ApproximateDP(EPSILON), key=key, request={"key": key})
            except Refused:
                return False
            return ledger.settle(charge, 1).state == "SETTLED"

        yield ask


@contextmanager
def naive(url: str, cap: float) -> Iterator[Ask]:
    """The control: it reads the balance, checks it and writes it back, as one would without much thought."""
    patience = {"timeout": 600.0} if url.startswith("sqlite") else {}
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", connect_args=patience)

    def ask(_key: str) -> bool:
        with engine.connect() as connection:
            spent = connection.execute(sa.text("SELECT spent FROM naive")).scalar_one()
            time.sleep(0.001)
            if spent + EPSILON > cap:
                return False
            connection.execute(sa.text("UPDATE naive SET spent = :spent"), {"spent": spent + EPSILON})
        return True

    yield ask
    engine.dispose()


@contextmanager
def unlocked(url: str, cap: float) -> Iterator[Ask]:
    """A mutant that takes no lock on the data set: the key of the entries, the second lock, must stop it."""

    def lock(self: Transaction, ids: Any) -> dict[int, Any]:
        found = {row.id: row for row in self.datasets()}
        time.sleep(0.001)
        return {number: found[number] for number in ids}

    with mock.patch.object(Transaction, "lock", lock), honest(url, cap) as careful:

        def ask(key: str) -> bool:
            try:
                return careful(key)
            except LedgerUnavailable:
                return False

        yield ask


CLIENTS = {"honest": honest, "naive": naive, "unlocked": unlocked}


def crowd(
    url: str, folder: str, *, processes: int, attempts: int, client: str, grants: int = GRANTS
) -> dict[str, Any]:
    """Let processes make attempts at a budget for ``grants`` charges, all at once.

    Returns:
        The number of granted charges, the seconds in all, the longest wait, and the median.
    """
    with closing(Ledger.create(url)) as ledger:
        ledger.open_dataset("crowd", policy(grants))
    naive_table(url)
    wait, go = os.pipe()
    here, ready = os.pipe()

    def work(number: int) -> None:
        os.close(go)
        log = Log(Path(folder) / f"{number}.log")
        with CLIENTS[client](url, grants * EPSILON) as ask:
            os.write(ready, b".")
            os.close(ready)
            os.read(wait, 1)  # nothing comes: it ends when the parent closes the pipe
            for attempt in range(number, attempts, processes):
                begin = time.perf_counter()
                granted = ask(f"q{attempt}")
                log.write(granted=granted, seconds=time.perf_counter() - begin)

    children = [fork(partial(work, number)) for number in range(processes)]
    os.close(ready)
    while os.read(here, processes):  # until everybody is ready, or dead
        pass
    begin = time.perf_counter()
    os.close(go)
    codes = [os.waitpid(child, 0)[1] for child in children]
    seconds = time.perf_counter() - begin
    demand(not any(codes), f"a client died: {codes}")
    lines = shown(Path(folder))
    demand(len(lines) == attempts, f"{len(lines)} of {attempts} attempts have an outcome")
    found = {
        "granted": sum(line["granted"] for line in lines),
        "attempts": attempts,
        "processes": processes,
        "seconds": round(seconds, 2),
        "longest wait": round(max(line["seconds"] for line in lines), 2),
        "median wait": round(statistics.median(line["seconds"] for line in lines), 3),
    }
    if client != "naive":
        with closing(Ledger.open(url)) as ledger:
            status = ledger.status("crowd")
            demand(ledger.verify("crowd").ok, "the history does not verify")
            demand(status.charges["SETTLED"] == found["granted"], f"{status.charges} is not what was granted")
            demand(status.spent == (sum(status.charges.values()) * 10**10,), f"spent is {status.spent}")
            demand(status.spent <= status.cap, f"spent is {status.spent}")
    return found


def naive_table(url: str) -> None:
    """Make the table in which the control keeps its balance."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE naive (spent double precision)"))
        connection.execute(sa.text("INSERT INTO naive VALUES (0)"))
    engine.dispose()


# --- sudden death -----------------------------------------------------------------------------------------


def client_until_refused(url: str, dataset: str, folder: Path, number: int) -> None:
    """Reserve, run, settle, show, until the budget is spent or the ledger is gone."""
    log = Log(folder / f"{number}.log")
    dice = random.Random()
    try:
        opened = Ledger.open(url)
    except LedgerUnavailable:  # the server fell before this client was up
        return
    with closing(opened) as ledger:
        for count in range(10**6):
            key = f"{number}-{count}"
            try:
                charge = ledger.reserve(
                    dataset, ApproximateDP(EPSILON), key=key, request={"key": key}, lease_s=1e-3
                )
                log.write(key=key, id=charge.id, token=charge.token)
                answer = dice.getrandbits(30)  # the mechanism
                ledger.settle(charge, answer)
                log.write(key=key, id=charge.id, answer=answer)
            except Refused:
                return
            except LedgerUnavailable:
                log.write(key=key, unavailable=True)
                return


def sudden_death(
    url: str,
    folder: str,
    *,
    rounds: int,
    writers: int = 2,
    grants: int = 40,
    longest: float = 0.4,
    server: str | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Kill all writers at a random moment, or the server under them, start again, and hold everything up.

    Args:
        longest: seconds until the kill, at most.
        server: folder of the PostgreSQL server to shut down at once, instead of SIGKILL to the writers.
    """
    dice = random.Random(seed)
    totals = {"rounds": rounds, "charges": 0, "released": 0, "reply lost": 0, "forfeited": 0, "early": 0}
    with closing(Ledger.create(url)) as ledger:
        pass
    for number in range(rounds):
        dataset = f"round-{number}"
        with closing(Ledger.open(url)) as ledger:
            ledger.open_dataset(dataset, policy(grants))
        client = partial(client_until_refused, url, dataset, Path(folder))
        children = [fork(partial(client, writer)) for writer in range(writers)]
        time.sleep(dice.uniform(0.0, longest))
        if server is None:
            kill(children)
        else:
            restart(server)
            for child in children:
                demand(os.waitpid(child, 0)[1] == 0, "a client died of a server that did")
        with closing(Ledger.open(url)) as ledger:
            for what, count in hold_up(ledger, dataset, shown(Path(folder)), grants).items():
                totals[what] += count
    return totals


def restart(folder: str) -> None:
    """Shut the PostgreSQL server in ``folder`` down as a power failure would, and start it again."""
    place = Path(__file__).with_name("postgres_server.py")
    spec = importlib.util.spec_from_file_location("postgres_server", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    server = module.Server(Path(folder))
    server.stop("immediate")
    server.start()


def hold_up(ledger: Ledger, dataset: str, lines: list[dict[str, Any]], grants: int) -> dict[str, int]:
    """Hold a ledger against what its clients have shown, end what they left, and use up what is left.

    Raises Broken on a release without a charge, a charge that is gone, an overspent cap, a broken chain.
    """
    # A server may still be at the last commit of a client that is dead: a write waits until it is through.
    ledger.register_content(dataset, ledger.fingerprint([os.urandom(16)]))
    found = ledger.verify(dataset)
    demand(found.ok, f"after the crash: {found.problems}")
    status = ledger.status(dataset)
    charges = sum(status.charges.values())
    demand(status.spent == found.spent == (charges * 10**10,), f"{charges} charges, spent {status.spent}")
    demand(charges <= grants, f"{charges} charges under a cap for {grants}")
    released = [line for line in lines if "answer" in line]
    for line in lines:
        if "unavailable" in line:
            continue
        again = ledger.reserve(dataset, ApproximateDP(EPSILON), key=line["key"], request={"key": line["key"]})
        demand(again.token is None, f"{line['key']} was reserved and is not there")
        demand(again.id == line["id"], f"{line['key']} is another charge now")
        if "answer" in line:
            demand(
                (again.state, again.answer) == ("SETTLED", line["answer"]),
                f"{line['key']} was released with {line['answer']}, and is {again}",
            )
    anchor = ledger.anchor(dataset)
    time.sleep(2e-3)  # the leases of the dead
    forfeited = ledger.recover(dataset)
    demand(ledger.status(dataset).spent == status.spent, "recovering changed what is spent")
    more = 0
    while ledger.price(dataset, ApproximateDP(EPSILON)).fits:
        key = f"after-{more}"
        ledger.settle(ledger.reserve(dataset, ApproximateDP(EPSILON), key=key, request={}), 0)
        more += 1
    demand(charges + more == grants, f"{charges} before and {more} after the crash, of {grants}")
    demand(ledger.verify(dataset, anchor=anchor).ok, "after recovery the history does not verify")
    return {
        "charges": charges,
        "released": len(released),
        "reply lost": status.charges["SETTLED"] - len(released),
        "forfeited": len(forfeited),
        "early": int(charges < grants),
    }


# --- between every two statements -------------------------------------------------------------------------

POINTS = ("before_cursor_execute", "after_cursor_execute", "commit")


def arm(limit: int) -> None:
    """Die at the ``limit``-th of these moments: before and after each statement and commit."""
    left = limit

    def tick(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os._exit(9)

    for point in POINTS:
        sa.event.listen(sa.Engine, point, tick)
    sa.event.listen(sa.pool.Pool, "checkin", tick)  # after a commit, the connection is given back


STEPS = {
    "reserve": "RESERVED",
    "settle": "SETTLED",
    "forfeit": "FORFEITED",
    "recover": "FORFEITED",
    "resume": "RESERVED",
}
"""The steps of a charge's life, and the state that each leaves."""


def between_statements(url: str, folder: str, *, steps: Sequence[str] = tuple(STEPS)) -> dict[str, Any]:
    """Die at every moment of every step of a charge's life; then the charge is whole, or was never there.

    The data set is derived from another, so that each step writes two charges and two entries.
    """
    points = {}
    with closing(Ledger.create(url)) as ledger:
        ledger.open_dataset("all", policy(10**6))
        for step in steps:
            limit, code = 0, 9
            while code == 9:
                code = die_at(ledger, Path(folder), step, limit)
                limit += 1
            demand(code == 0, f"{step} at moment {limit} ended with code {code}")
            demand(ledger.verify("all").ok, f"the parent after {step}: {ledger.verify('all').problems}")
            points[step] = limit - 1
    return {"moments": points, "in all": sum(points.values())}


def die_at(ledger: Ledger, folder: Path, step: str, limit: int) -> int:
    """The exit code of a client that dies at a moment of a step; 0 if the step was done before."""
    dataset, token = f"{step}-{limit}", "a secret of the client's own"
    event, request = ApproximateDP(EPSILON), {"step": step}
    ledger.open_dataset(dataset, policy(3, parent="all"))

    def reserve() -> Charge:
        lease = 1e-6 if step == "recover" else 60.0
        return ledger.reserve(dataset, event, key="q", request=request, token=token, lease_s=lease)

    held = None if step == "reserve" else reserve()
    if held is not None and step == "resume":
        ledger.forfeit(held)

    def client() -> None:
        ledger.status(dataset)  # the connection of this process
        arm(limit)
        if held is None:
            reserve()
        elif step == "settle":
            ledger.settle(held, 417)
        elif step == "forfeit":
            ledger.forfeit(held)
        elif step == "recover":
            ledger.recover(dataset)
        else:
            ledger.resume(dataset, "q", token)
        Log(folder / "client.log").write(done=step)
        os._exit(0)

    above = ledger.status("all").spent[0] if held is None else ledger.status("all").spent[0] - 10**10
    code = os.waitstatus_to_exitcode(os.waitpid(fork(client), 0)[1])
    done = bool(shown(folder))
    demand(done == (code == 0), f"{step} says it is done, and exits with {code}")
    spent = ledger.status(dataset).spent[0]
    demand(ledger.status("all").spent[0] == above + spent, f"half a charge: {step} at moment {limit}")
    demand(ledger.verify(dataset).ok, f"{step} at {limit}: {ledger.verify(dataset).problems}")
    again = reserve()
    if step == "reserve":
        demand(spent == (0 if again.token else 10**10), f"half a reservation at {limit}: {spent}, {again}")
    else:
        demand(spent == 10**10, f"{step} changed what is spent, at {limit}: {spent}")
    wholly = again.token is None and again.state == STEPS[step]
    demand(wholly or not done, f"{step} was done, and is not, at {limit}: {again}")
    if step == "settle":
        demand(again.answer == (417 if again.state == "SETTLED" else None), f"half an answer at {limit}")
    finish(ledger, dataset, token)
    return code


def finish(ledger: Ledger, dataset: str, token: str) -> None:
    """Whatever state the crash left: the holder of the token can bring it to its end."""
    taken = ledger.resume(dataset, "q", token)
    if taken.state == "RESERVED":
        taken = ledger.settle(taken, 417)
    demand((taken.state, taken.answer) == ("SETTLED", 417), f"the charge cannot be ended: {taken}")
    demand(ledger.status(dataset).spent == (10**10,), "ending it changed what is spent")
    demand(ledger.verify(dataset).ok, "ended, it does not verify")


TORTURES: dict[str, Callable[..., dict[str, Any]]] = {
    "crowd": crowd,
    "sudden death": sudden_death,
    "between statements": between_statements,
}


def perform(text: str) -> dict[str, Any]:
    """Run one torture."""
    order = json.loads(text)
    what, url, folder = (order.pop(name) for name in ("what", "url", "folder"))
    return TORTURES[what](url, folder, **order)


def answer(text: str) -> None:
    """Run one torture, and say what it found or broke."""
    try:
        say(found=perform(text))
    except Exception:  # noqa: BLE001 - whatever it is, it is told
        say(broken=traceback.format_exc())


def say(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def serve() -> None:
    """Run the tortures that are ordered, each in a process of its own: to import takes longer than most."""
    for text in sys.stdin:
        _, status = os.waitpid(fork(partial(answer, text)), 0)
        if status:
            say(broken=f"the torture ended with status {status}")


def main() -> int:
    """Run one torture; its findings go to standard output as JSON. Or those of the standard input."""
    if sys.argv[1] == "--serve":
        serve()
    else:
        sys.stdout.write(json.dumps(perform(sys.argv[1])) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
