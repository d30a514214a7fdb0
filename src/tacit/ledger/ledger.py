"""The interface of a ledger: price, reserve, run, settle."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, final

from tacit.errors import InvalidInput, check_real
from tacit.events import Adjacency, ApproximateDP, Event, Gaussian, Laplace, ZeroConcentratedDP, event_to_json
from tacit.ledger.charges import (
    CLAIMED,
    Verdict,
    burn,
    charge_of,
    check_fingerprint,
    check_key,
    check_opening,
    check_same_policy,
    claims_of,
    end,
    existing_charge,
    forfeit_overdue,
    open_new,
    price_of,
    public_text,
    raise_cap,
    refusal_of,
    register,
    resume_charge,
    row_of,
    status_of,
    take,
    unknown,
    verdict_of,
)
from tacit.ledger.policy import Budget, Policy
from tacit.ledger.records import (
    Anchor,
    Charge,
    Conflict,
    DatasetStatus,
    Entry,
    Json,
    LeaseLost,
    Price,
    canonical,
    current_user,
    keyed_hash,
)
from tacit.ledger.verification import Verification, replay

if TYPE_CHECKING:
    from tacit.ledger.store import Store

# The ledger reserves a charge in one transaction, before data is read. It stores the answer in a second
# transaction, before anyone sees the answer. If the process crashes in between, the charge stays spent, as an
# answer may have been computed. There are no refunds.


@final
class Ledger:
    """A database with one privacy budget per data set, for every training run and every query on it.

    Make a ledger with :meth:`create`, and later :meth:`open` it. ``url`` is the path of a SQLite file, for
    one computer, or ``postgresql+psycopg://...``. Threads and processes may share a ledger. Methods raise
    ``InvalidInput`` if a ledger, data set or charge does not exist.

    To release something, :meth:`reserve` its cost first. You get a charge with a token, which allows you to
    run the mechanism. Then :meth:`settle` the charge, which stores the answer.

    **Guarantee**

    * Together, all releases charged to a data set stay within its cap, the limit on epsilon and delta. This
      holds for all users and processes, in any order, and even if you choose each request after you have seen
      all earlier answers.
    * The ledger commits a charge to the database before it returns the token. Run nothing without a token.
    * Nothing is refunded: ``settle``, ``forfeit`` and crashes never lower what is spent.
    * The same request under the same key is charged once. A second call gets the stored answer, if there is
      one.
    * Refusals, prices and balances depend only on public facts and earlier charges, so they cost nothing.

    >>> from tacit.events import DiscreteLaplace
    >>> from tacit.ledger import Policy, PureBudget
    >>> ledger = Ledger.create("sqlite://")  # in memory, to try it out
    >>> policy = Policy(unit="patient", adjacency="add-remove", budget=PureBudget(1.0))
    >>> ledger.open_dataset("visits", policy)
    >>> charge = ledger.reserve("visits", DiscreteLaplace(2.0), key="q1", request={"count": "*"})
    >>> charge.state, ledger.status("visits").remaining_epsilon
    ('RESERVED', 0.5)
    >>> ledger.settle(charge, {"count": 417}).answer
    {'count': 417}
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._identity = store.identity

    def __repr__(self) -> str:
        return f"Ledger({str(self._store.target)!r}, uuid={self.uuid!r})"  # the target hides a password

    @classmethod
    def create(cls, url: str | os.PathLike[str]) -> Ledger:
        """Make a new ledger.

        Raises:
            InvalidInput: if something already exists at ``url``.
            PrivacyRefusal: if the ledger would be a SQLite file on a network file system.
        """
        from tacit.ledger.store import Store

        return cls(Store.create(url))

    @classmethod
    def open(cls, url: str | os.PathLike[str]) -> Ledger:
        """Open an existing ledger."""
        from tacit.ledger.store import Store

        return cls(Store.open(url))

    @property
    def uuid(self) -> str:
        """The unique id of this ledger."""
        return self._identity.uuid

    @property
    def engine(self) -> str:
        """The name and settings of the database engine."""
        return self._store.describe()

    def close(self) -> None:
        """Close the connections to the database; the next method call opens them again."""
        self._store.close()

    # --- data sets ------------------------------------------------------------------------------------------

    def open_dataset(self, name: str, policy: Policy, *, fingerprint: str | None = None) -> None:
        """Open a data set and fix its policy; a second call with the same policy does nothing.

        Args:
            name: the name of the data set: letters, digits, dots, dashes and underscores.
            policy: the public facts about the data set, and its budget.
            fingerprint: the keyed hash of the content, to register it as :meth:`register_content` does.

        Raises:
            Conflict: if the data set is open with another policy (the message lists the differences), or the
                content is registered under another name, or the policy's parent has another unit or
                adjacency.
        """
        check_opening(name, policy)
        if fingerprint is not None:
            check_fingerprint(fingerprint)
        with self._store.write() as tx:
            tx.lock_ledger()
            row = tx.dataset(name)
            if row is not None:
                check_same_policy(row, policy)
                return
            open_new(tx, name, policy)
            if fingerprint is not None:
                register(tx, name, fingerprint, None)

    def datasets(self) -> list[DatasetStatus]:
        """Return the status of every data set, in the order in which they were opened."""
        with self._store.read() as tx:
            return [status_of(tx, row) for row in tx.datasets()]

    def status(self, name: str) -> DatasetStatus:
        """Return the state of a data set's budget: what is spent, and what is left."""
        with self._store.read() as tx:
            return status_of(tx, row_of(tx, name))

    def policy(self, name: str) -> Policy:
        """Return the policy of a data set."""
        with self._store.read() as tx:
            return row_of(tx, name).policy

    def history(self, name: str) -> list[Entry]:
        """Return all entries in the history of a data set, the oldest first. Entries contain no answers."""
        with self._store.read() as tx:
            return tx.entries(row_of(tx, name).id)

    def anchor(self, name: str) -> Anchor:
        """Return the number and hash of the newest entry in a data set's history.

        Store this anchor outside the ledger. With it, :meth:`verify` can detect a restored backup.
        """
        with self._store.read() as tx:
            row = row_of(tx, name)
            return Anchor(self.uuid, row.name, row.head_seq, row.head_hash)

    def fingerprint(self, content: Iterable[bytes | memoryview]) -> str:
        """Return a keyed hash (HMAC) of some content; the key is this ledger's secret."""
        return keyed_hash(self._identity.secret, content)

    def register_content(
        self, name: str, fingerprint: str, *, block: str | None = None, verdict: Verdict | None = None
    ) -> None:
        """Register the fingerprint of a data set's content; registering it again changes nothing.

        Training runs and :func:`tacit.queries.register_table` do this for you. New content of the same data
        set is charged to the same budget. The ledger refuses the same content in two data sets with separate
        budgets.

        Args:
            name: the name of the data set.
            fingerprint: the keyed hash of the content, from :meth:`fingerprint`.
            block: the block (a declared part of the data set) with this content, if any.
            verdict: the result of the table's check, which queries require and training does not.

        Raises:
            Conflict: if the content is registered as another data set, or as another block.
        """
        check_fingerprint(fingerprint)
        with self._store.read() as tx:
            row = row_of(tx, name)
            is_recorded = verdict is None or verdict_of(tx, row, fingerprint) == verdict
            if not unknown(tx, name, fingerprint, block) and is_recorded:
                return
        with self._store.write() as tx:
            register(tx, name, fingerprint, block, verdict=verdict)

    def verdict(self, name: str, fingerprint: str) -> Verdict | None:
        """Return the result of the check of some content; None if no check has succeeded.

        ``fingerprint`` identifies the content. :func:`tacit.queries.register_table` makes the check.
        """
        check_fingerprint(fingerprint)
        with self._store.read() as tx:
            return verdict_of(tx, row_of(tx, name), fingerprint)

    def raise_cap(self, name: str, budget: Budget, *, reason: str, by: str) -> None:
        """Raise the cap of a data set, its limit on epsilon and delta.

        This breaks the promise made to the people in the data: the larger cap applies to all releases, also
        to the earlier ones.

        Args:
            name: the name of the data set.
            budget: the larger budget. Its class must be the same, and so must the orders of a
                :class:`RenyiBudget`.
            reason, by: why the cap is raised, and by whom. Every later certificate shows both.

        Raises:
            Conflict: if the budget has another class or other orders.
            InvalidInput: if the budget is not larger, or no reason is given.
        """
        for field, text in (("reason", reason), ("by", by)):
            if not public_text(field, text).strip():
                raise InvalidInput(
                    f"{field} must not be empty: certificates show this text, because raising a cap breaks a "
                    "promise."
                )
        with self._store.write() as tx:
            raise_cap(tx, name, budget, reason=reason, by=by)

    def recover_from_backup(self, name: str, anchor: Anchor) -> None:
        """Mark the remaining budget as spent after you restored an old backup.

        The backup lacks all later charges, so the rest of the budget may have been spent already. Call this
        method for every data set of the ledger. It also spends what is left of the data sets from which this
        one is derived. Runs and queries that are under way on these data sets cannot go on.

        Args:
            name: the name of the data set.
            anchor: an anchor from :meth:`anchor` that is newer than the backup.

        Raises:
            InvalidInput: if the history contains the anchor, so that nothing is missing.
            Conflict: if the anchor is of another data set or ledger.
        """
        if (anchor.ledger, anchor.dataset) != (self.uuid, name):
            raise Conflict(
                f"anchor {anchor} is not of data set {name!r} in ledger {self.uuid}. Use an anchor of this "
                "data set."
            )
        with self._store.write() as tx:
            burn(tx, name, anchor)

    def verify(self, name: str, *, anchor: Anchor | None = None) -> Verification:
        """Recompute a data set's state from its history, and compare it with the stored state.

        Args:
            name: the name of the data set.
            anchor: an earlier anchor. With it, the check also detects a restored backup or a rewritten
                history.

        Returns:
            The result, with the differences found.
        """
        with self._store.read() as tx:
            row = row_of(tx, name)
            entries, charges, contents = tx.entries(row.id), tx.charges(row.id), tx.contents(row.id)
            parent = row.policy.parent
            above = [] if parent is None else tx.charges(row_of(tx, parent).id)
        return replay(row, entries, charges, above, contents, identity=self._identity, anchor=anchor)

    # --- charges --------------------------------------------------------------------------------------------

    def price(
        self, name: str, event: Event, *, block: str | None = None, delta: float | None = None
    ) -> Price:
        """Return what ``event`` would cost now, and whether it fits; nothing is charged.

        Args:
            name: the name of the data set.
            event: the description of the mechanism, such as ``Laplace(4.0)``.
            block: if the event reads only one block (a declared part of the data set), its name; else None.
            delta: the delta to charge. Only an :class:`ApproximateBudget` needs it, for events whose epsilon
                depends on it, such as Gaussian noise.

        Raises:
            UnsupportedEvent: if the event has no proven cost in this kind of budget.
        """
        with self._store.read() as tx:
            claims = claims_of(tx, name, event, block, delta)
            return price_of(claims)

    def find(self, name: str, key: str) -> Charge | None:
        """Return the charge with this key, without its token; None if there is no such charge."""
        with self._store.read() as tx:
            row = row_of(tx, name)
            charge = tx.charge(row.id, key)
            return None if charge is None else charge_of(row, charge)

    def reserve(
        self,
        name: str,
        event: Event,
        *,
        key: str,
        request: Mapping[str, Json],
        block: str | None = None,
        delta: float | None = None,
        lease_s: float = 3600.0,
        by: str = "",
        label: str = "",
        token: str | None = None,
    ) -> Charge:
        """Charge ``event`` before you read the data. Then :meth:`settle` the charge.

        Args:
            name, event, block, delta: as in :meth:`price`.
            key: a name that you choose for the request. If you repeat the request with the same key, it is
                charged once.
            request: the request as JSON. It may name people, so the ledger stores only a keyed hash of it.
            lease_s: how long the charge stays reserved, in seconds. Afterwards, :meth:`recover` may end it.
            by: the analyst, for the history; by default the user of the operating system.
            label: the purpose, for the history.
            token: a secret, by default random. To :meth:`resume` after a crash, choose and save one before
                this call.

        Returns:
            The charge. Run the mechanism only if the charge contains a token. Without a token, it comes from
            an earlier call.

        Raises:
            Refused: if the charge does not fit the budget; nothing is charged, and the history shows the
                refusal.
            Conflict: if the key belongs to another request.
        """
        check_key(key)
        if token is not None and len(token) < 16:
            raise InvalidInput("token must have at least 16 characters, as it is a secret.")
        lease = _microseconds(lease_s)
        hashed = keyed_hash(self._identity.secret, [canonical(dict(request)).encode()])
        with self._store.read() as tx:
            priced = claims_of(tx, name, event, block, delta)  # outside the lock, as it may take long
        facts = {
            "key": key,
            "request": hashed,
            "event": event_to_json(event),
            "delta": delta,
            "by": public_text("by", by) or current_user(),
            "label": public_text("label", label),
        }
        with self._store.write() as tx:
            rows = tx.lock(claim.row.id for claim in priced)
            claims = [replace(claim, row=rows[claim.row.id]) for claim in priced]
            charge = tx.charge(claims[0].row.id, key)
            if charge is not None:
                return existing_charge(claims[0].row, charge, hashed)
            refusal = refusal_of(claims)
            if refusal is None:
                return take(tx, claims, facts, lease=lease, token=token or secrets.token_hex(16))
            tx.append(claims[0].row, "refuse", facts | {"cost": claims[0].cost, "block": block})
        raise refusal

    def claim(
        self,
        name: str,
        event: Event,
        *,
        release: str,
        tool: str,
        unit: str,
        adjacency: str,
        delta: float | None = None,
        by: str = "",
    ) -> Charge:
        """Charge a release that another tool makes; call this method before the tool runs.

        The ledger cannot check the tool's mechanism, so certificates and status mark the charge as claimed.
        The whole data set is charged, never a block. If you claim the same release again, it is charged once.

        Args:
            name, delta, by: as in :meth:`reserve`.
            event: the tool's guarantee: an ``ApproximateDP``, ``ZeroConcentratedDP``, ``Gaussian`` or
                ``Laplace``. For the last two, the noise multiplier is the noise scale divided by the most
                that one unit can change the sum.
            release: a name that you choose for the release.
            tool: the tool, its version and the mechanism, for the history.
            unit, adjacency: the unit of privacy and the adjacency of the tool's guarantee; they must be the
                policy's.

        Returns:
            The charge.

        Raises:
            Refused: if the claim does not fit the budget; see :meth:`reserve`.
            Conflict: if the policy has another unit or adjacency, or if the same release was claimed before
                with another guarantee.

        >>> from tacit.ledger import Policy, PureBudget
        >>> ledger = Ledger.create("sqlite://")
        >>> policy = Policy(unit="patient", adjacency="add-remove", budget=PureBudget(1.0))
        >>> ledger.open_dataset("visits", policy)
        >>> facts = {"tool": "PrivBayes", "unit": "patient", "adjacency": "add-remove"}
        >>> charge = ledger.claim("visits", ApproximateDP(0.25), release="synthetic", **facts)
        >>> charge.state, ledger.status("visits").remaining_epsilon
        ('SETTLED', 0.75)
        """
        if not isinstance(event, ApproximateDP | Gaussian | Laplace | ZeroConcentratedDP):
            raise InvalidInput(
                "event of a claim must be ApproximateDP, ZeroConcentratedDP, Gaussian or Laplace; got "
                f"{event!r}. State the (epsilon, delta) or the rho of the whole release."
            )
        for field, text in (("release", release), ("tool", tool)):
            if not public_text(field, text).strip():
                raise InvalidInput(f"{field} must not be empty: certificates show this text with the claim.")
        policy = self.policy(name)
        relations = Adjacency.parse(adjacency).value, policy.relation.value
        for field, stated, own in (("unit", unit, policy.unit), ("adjacency", *relations)):
            if stated != own:
                raise Conflict(
                    f"{field} of the claim is {stated!r}, but the policy of {name!r} has {own!r}. Nothing "
                    f"was charged. Claim a guarantee that the tool proves for {own!r}."
                )
        if not any(self.price(name, event, delta=delta).cost):
            raise InvalidInput(f"the claimed event {event!r} costs nothing. Give the cost of the release.")
        charge = self.reserve(
            name,
            event,
            key=f"{CLAIMED}/{release}",
            request={"tool": tool, "event": event_to_json(event), "delta": delta},
            delta=delta,
            by=by,
            label=tool,
        )
        return charge if charge.token is None else self.settle(charge, {CLAIMED: tool})

    def settle(self, charge: Charge, answer: Json) -> Charge:
        """Store the answer to a reserved request. Show the answer only after this method has returned.

        Raises:
            LeaseLost: if the token is missing or wrong, or the charge has ended. For example, :meth:`recover`
                ended it after its lease. Then show nothing.
        """
        text = canonical(answer)
        facts = {"answer": hashlib.sha256(text.encode()).hexdigest()}
        return self._end(charge, "settle", facts, text)

    def forfeit(self, charge: Charge) -> Charge:
        """End a reserved charge without an answer; the cost stays spent.

        Raises:
            LeaseLost: if the charge is already settled, or if its token is missing or wrong.
        """
        return self._end(charge, "forfeit", {"why": "given up"}, None)

    def _end(self, charge: Charge, kind: str, facts: Mapping[str, Any], answer: str | None) -> Charge:
        if charge.token is None:
            raise LeaseLost(
                "this charge has no token. Only the process that made the reservation has the token, and "
                "may end it."
            )
        with self._store.write() as tx:
            return end(tx, charge, charge.token, kind, facts, answer)

    def resume(self, name: str, key: str, token: str, *, lease_s: float = 3600.0) -> Charge:
        """Continue a reserved charge after a crash, or extend its lease.

        ``token`` is the one that you saved or got from :meth:`reserve`. This works even if :meth:`recover`
        has forfeited the charge, because the cost stays spent. If you showed part of the answer before the
        crash, compute the answer again with the same random numbers.

        Returns:
            The charge: with the token, or with the answer if the charge is settled.

        Raises:
            LeaseLost: if the token is of another charge.
        """
        lease = _microseconds(lease_s)
        with self._store.read() as tx:
            charge = tx.charge(row_of(tx, name).id, key)
        if charge is None:
            raise InvalidInput(f"there is no charge {key!r} on {name!r} to resume.")
        with self._store.write() as tx:
            return resume_charge(tx, charge.id, token, lease=lease)

    def recover(self, name: str) -> list[Charge]:
        """End the reserved charges whose lease is over. Their cost stays spent.

        The clock is that of the database engine.

        Returns:
            The charges that were ended, now ``FORFEITED``.
        """
        forfeited = []
        with self._store.read() as tx:
            row = row_of(tx, name)
            late = tx.overdue(row.id, max(tx.now(), row.head_time))
        for number in late:
            with self._store.write() as tx:
                forfeited.append(forfeit_overdue(tx, number))
        return [charge for charge in forfeited if charge is not None]


def _microseconds(lease_s: float) -> int:
    return round(check_real("lease_s", lease_s, low=0.0, high=366 * 86400.0, open_low=True) * 1e6)


_PREFIX = "training/"


@dataclass(frozen=True)
class ChargedRun:
    """The public facts about a run's charges, for its privacy statement."""

    ledger: str  # the ledger's id
    dataset: str  # the data set's name in the ledger
    run: str  # the run's id, which is in the keys of its charges
    steps: int  # the number of reserved steps. All of them are spent, whether or not they were taken.
    # first_entry, last_entry: the numbers of the entries with the run's first and last reservation
    first_entry: int
    last_entry: int
    head: str  # the anchor of the data set's history when this object was made

    def to_data(self) -> dict[str, Any]:
        return asdict(self)


def charge_key(run: str, first: int, stop: int) -> str:
    """Return the key of the charge for the steps ``first``, ..., ``stop - 1`` of the run with id ``run``."""
    return f"{_PREFIX}{run}/{first}-{stop}"


def once_key(run: str, release: str) -> str:
    return f"{_PREFIX}{run}/{release}"


def charged_run(ledger: Ledger, dataset: str, run: str) -> ChargedRun:
    pattern = re.compile(re.escape(f"{_PREFIX}{run}/") + r"\d+-(\d+)")
    matches = [
        (entry.seq, pattern.fullmatch(entry.body["key"]))
        for entry in ledger.history(dataset)
        if entry.kind == "reserve"
    ]
    reserved = [(seq, int(match[1])) for seq, match in matches if match is not None]
    if not reserved:
        raise InvalidInput(
            f"run {run!r} has no charge on data set {dataset!r}. Check the ledger, and the run's id in its "
            "statement."
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
