"""The charges of a training run: its entries in the ledger, and the steps that they cover."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from tacit.errors import InvalidInput
from tacit.ledger.ledger import Ledger

_PREFIX = "training/"


@dataclass(frozen=True)
class ChargedRun:
    """The public facts about the charges of a run that its privacy statement gives.

    Attributes:
        ledger: the ledger's id.
        dataset: the data set's name in the ledger.
        run: the run's id, which is in the keys of its charges.
        steps: the number of reserved steps. All of them are spent, whether or not they were taken.
        first_entry, last_entry: the numbers of the entries with the run's first and last reservation.
        head: the anchor of the data set's history when this object was made.

    >>> run = ChargedRun("6f1c", "visits", "a1", 200, first_entry=2, last_entry=11, head="6f1c:visits:12")
    >>> run.to_data()["steps"]
    200
    """

    ledger: str
    dataset: str
    run: str
    steps: int
    first_entry: int
    last_entry: int
    head: str

    def to_data(self) -> dict[str, Any]:
        """Return the fields as plain data, for JSON."""
        return asdict(self)


def charge_key(run: str, first: int, stop: int) -> str:
    """Return the key of the charge for the steps ``first``, ..., ``stop - 1`` of the run with id ``run``.

    >>> charge_key("a1", 0, 20)
    'training/a1/0-20'
    """
    return f"{_PREFIX}{run}/{first}-{stop}"


def once_key(run: str, release: str) -> str:
    """Return the key of ``release``, which the run with id ``run`` releases once.

    >>> once_key("a1", "score")
    'training/a1/score'
    """
    return f"{_PREFIX}{run}/{release}"


def charged_run(ledger: Ledger, dataset: str, run: str) -> ChargedRun:
    """Return the charges that the run with id ``run`` has made so far.

    Raises:
        InvalidInput: if the run has no charges.

    >>> from tacit.events import Gaussian
    >>> from tacit.ledger import Policy, RenyiBudget
    >>> ledger = Ledger.create("sqlite://")
    >>> policy = Policy(unit="patient", adjacency="add-remove", budget=RenyiBudget(epsilon=3.0, delta=1e-6))
    >>> ledger.open_dataset("visits", policy)
    >>> charge = ledger.reserve("visits", Gaussian(20.0), key=charge_key("a1", 0, 20), request={})
    >>> charges = charged_run(ledger, "visits", "a1")
    >>> charges.steps, charges.first_entry, charges.last_entry
    (20, 1, 1)
    """
    pattern = re.compile(re.escape(f"{_PREFIX}{run}/") + r"\d+-(\d+)")
    matches = [
        (entry.seq, pattern.fullmatch(entry.body["key"]))
        for entry in ledger.history(dataset)
        if entry.kind == "reserve"
    ]
    reserved = [(seq, int(match[1])) for seq, match in matches if match is not None]
    if not reserved:
        raise InvalidInput(
            f"run {run!r} has no charge on data set {dataset!r}. Check the run's id, which is in its "
            "statement, and the ledger."
        )
    return ChargedRun(
        ledger=ledger.uuid,
        dataset=dataset,
        run=run,
        steps=max(stop for _, stop in reserved),
        first_entry=min(seq for seq, _ in reserved),
        last_entry=max(seq for seq, _ in reserved),
        head=str(ledger.anchor(dataset)),
    )
