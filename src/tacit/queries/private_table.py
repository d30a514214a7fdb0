"""Private tables, which answer questions in Python and charge the ledger first.

The order is always: check against the policy, price, reserve, count, add noise, settle, show.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Self, Unpack, final

from tacit.errors import InvalidInput, PrivacyRefusal, check_integer
from tacit.events import Compose
from tacit.ledger import Ledger, Policy, StillRunning
from tacit.ledger.records import Charge, Price
from tacit.queries.answer import Answer, content_of, describe, foreseen, read_content
from tacit.queries.engines import EngineFailure, engine_of
from tacit.queries.plan import (
    Compiled,
    Privacy,
    Sampler,
    collect,
    compile_query,
    listing_privacy,
    release_all,
    sampler,
)
from tacit.queries.query import Query
from tacit.queries.sql import parse

_UNREGISTERED = (
    "this table is not registered as {dataset!r}. The curator must first check every cell against the "
    "policy. Until then no question is priced or answered, whatever is in the table. The curator runs "
    "`tacit ledger register LEDGER TABLE --dataset {dataset}`, or in Python "
    "tacit.queries.register_table(table, ledger=ledger, dataset={dataset!r})."
)


@dataclass(frozen=True)
class Quote:
    """The price of a question, and the mechanism of its answer; nothing was charged.

    >>> import pandas as pd
    >>> from tacit.ledger import Column, PureBudget
    >>> from tacit.queries import Count, register_table
    >>> ledger = Ledger.create("sqlite://")
    >>> ledger.open_dataset("visits", Policy(
    ...     unit="visit", adjacency="add-remove", budget=PureBudget(1.0),
    ...     columns={"age": Column(kind="number", lower=0, upper=120)},
    ... ))
    >>> visits = pd.DataFrame({"age": [71.0, 34.0, 80.0]})
    >>> _ = register_table(visits, ledger=ledger, dataset="visits")
    >>> quote = PrivateTable(visits, ledger=ledger, dataset="visits").price(Query((Count(),)), epsilon=0.5)
    >>> quote.epsilon, quote.asked_before, quote.price.fits
    (0.5, False, True)
    """

    price: Price  # the ledger's price
    mechanism: tuple[str, ...]  # how the answer would be computed from the data, one line per release
    # the width of the noise in 95 % of all answers, one line per aggregate. It omits means, variances and
    # standard deviations, as their noise depends on the number of rows.
    foreseen: tuple[str, ...]
    # the state of the charge for this question, ``RESERVED``, ``SETTLED`` or ``FORFEITED``; None if it has
    # not been charged
    state: str | None
    epsilon: float  # epsilon, delta: the cost of this answer alone, as in :class:`Answer`
    delta: float

    @property
    def asked_before(self) -> bool:
        """Whether the answer is in the ledger, and costs nothing."""
        return self.state == "SETTLED"


@final
class PrivateTable:
    """A table whose answers are charged to one budget.

    Args:
        data: a pandas or Polars DataFrame, a pyarrow Table, the path of a Parquet or CSV file, or an
            :class:`~tacit.queries.engines.Engine`.
        ledger: the ledger that holds the budget.
        dataset: the name under which the ledger has opened the data set.
        block: the person-disjoint block of the data set that ``data`` contains, if any.
        noise: the sampler of the noise, ``own`` (Tacit) or ``opendp``.

    The curator must have registered the table with :func:`~tacit.queries.register_table`, which checks its
    cells and stores its fingerprint. The private table refuses all other tables, also those with a cell that
    the curator did not accept, with one and the same message.

    The budget belongs to the persons, not to the file. New content of the same data set is another version,
    and its answers are charged again, to the same budget. Only the curator can know that new content *is* the
    same data set. The ledger recognises unchanged content: it refuses to register it under another name with
    a separate budget, or as another block.

    Raises:
        PrivacyRefusal: if the table is not registered.
        Conflict: if it is registered as another block.
        InvalidInput: if it cannot be opened, or lacks a column.

    **Guarantee**

    * Nothing is counted before the ledger has committed the charge, and nothing is shown before it has stored
      the answer.
    * Refusals do not depend on cells. A table that the curator has not registered is refused before any
      price, with the same message whatever it contains.
    * The charge is the event of the mechanism that is performed. A question that does not fit the budget is
      refused, and costs nothing.
    * If the same question is asked again about the same content, the ledger returns the stored answer, with
      the same noise and without a charge.
    * After a failure the charge stays spent, and the message reveals nothing of the data.
    * The guarantee does not cover the time that an answer takes.

    >>> import pandas as pd
    >>> from tacit.ledger import Column, PureBudget
    >>> from tacit.queries import Compare, Count, register_table
    >>> ledger = Ledger.create("sqlite://")
    >>> ledger.open_dataset("visits", Policy(
    ...     unit="visit", adjacency="add-remove", budget=PureBudget(1.0),
    ...     columns={"age": Column(kind="number", lower=0, upper=120)},
    ... ))
    >>> visits = pd.DataFrame({"age": [71.0, 34.0, 80.0]})
    >>> _ = register_table(visits, ledger=ledger, dataset="visits")  # by the curator
    >>> table = PrivateTable(visits, ledger=ledger, dataset="visits")
    >>> old = Query((Count(),), where=Compare("age", ">", 65))
    >>> table.ask(old, epsilon=0.5).epsilon
    0.5
    >>> table.ask(old, epsilon=0.5).repeated
    True
    """

    def __init__(
        self, data: object, *, ledger: Ledger, dataset: str, block: str | None = None, noise: str = "own"
    ) -> None:
        self._ledger = ledger
        self._dataset = dataset
        self._policy = ledger.policy(dataset)
        self._block = block
        self._sampler: Sampler = sampler(noise)
        self._engine = engine_of(data, self._policy)
        self._version = ledger.fingerprint(self._engine.content())
        if ledger.verdict(dataset, self._version) is None:
            raise PrivacyRefusal(_UNREGISTERED.format(dataset=dataset))
        ledger.register_content(dataset, self._version, block=block)
        self._engine.check(self._policy)
        self._engine.load()

    @property
    def policy(self) -> Policy:
        """The public facts of the data set."""
        return self._policy

    @property
    def version(self) -> str:
        """The keyed fingerprint of the content, which only this ledger can compute."""
        return self._version

    @listing_privacy
    def price(self, query: Query, *, attempt: int = 1, **privacy: Unpack[Privacy]) -> Quote:
        """Return the price of a question without a charge, and without reading data; see :meth:`ask`."""
        compiled = self._compiled(query, privacy)
        key, _ = self._request(compiled, attempt)
        price = self._ledger.price(
            self._dataset, compiled.event, block=self._block, delta=compiled.charge_delta
        )
        charge = self._ledger.find(self._dataset, key)
        cost = compiled.stated_cost or (price.epsilon, price.delta)
        return Quote(
            price, describe(compiled), foreseen(compiled), None if charge is None else charge.state, *cost
        )

    @listing_privacy
    def ask(self, query: Query, *, attempt: int = 1, by: str = "", **privacy: Unpack[Privacy]) -> Answer:
        """Answer a question, after charging the ledger for it.

        Args:
            query: the question.
            privacy: ``epsilon`` of the whole answer, or ``rho`` for Gaussian noise. ``delta`` is needed for
                Gaussian noise with epsilon, and if a threshold finds the groups. ``mechanism`` is the
                distribution of the noise, ``laplace`` or ``gaussian``.
            attempt: 2, 3, ... to ask the same question again and be charged again: for fresh noise, or for an
                answer if an earlier attempt was charged and lost.
            by: the analyst's name for the ledger's history, which is public.

        Raises:
            Refused: if the question does not fit the budget; the message gives its cost, what is left, and
                what would fit.
            StillRunning: if another process is answering the same question.
            EngineFailure: if the engine failed; the charge stays, and the message does not give the reason.
            InvalidInput, PrivacyRefusal: if the question does not fit the policy; nothing is charged.
        """
        compiled = self._compiled(query, privacy)
        charge = self._reserve(compiled, attempt, by)
        if charge.token is None:
            return self._stored_answer(compiled, charge)
        failure: BaseException | None = None
        try:
            raw = collect(compiled, [self._engine.rows(each) for each in compiled.statements])
            content = content_of(compiled, release_all(compiled, raw, self._sampler))
        except BaseException as problem:  # noqa: BLE001 - a Ctrl-C too leaves the charge spent
            failure = problem
        if failure is not None:  # outside the handler, so that no later error has this one as its context
            self._ledger.forfeit(charge)
            raise EngineFailure if isinstance(failure, Exception) else failure
        return self._answer(compiled, self._ledger.settle(charge, content), repeated=False)

    @listing_privacy
    def sql(self, text: str, *, attempt: int = 1, by: str = "", **privacy: Unpack[Privacy]) -> Answer:
        """Answer a question in SQL, as :func:`~tacit.queries.sql.parse` reads it; FROM names the data set.

        Raises:
            InvalidInput, PrivacyRefusal: if a part of the text is not supported or not allowed; the message
                shows its position, and nothing is charged.
        """
        query = parse(text, self._policy, table=self._dataset)
        return self.ask(query, attempt=attempt, by=by, **privacy)

    def close(self) -> None:
        """Close the engine; the ledger stays open."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _compiled(self, query: Query, privacy: Privacy) -> Compiled:
        if not isinstance(query, Query):
            raise InvalidInput(f"query must be a Query, such as Query((Count(),)); got {query!r}.")
        return compile_query(query, self._policy, **privacy)

    def _request(self, compiled: Compiled, attempt: int) -> tuple[str, dict[str, Any]]:
        """Return the key of a request in the history, and the request."""
        # The key is a keyed hash, as a plain hash would confirm a guess of the request.
        again = check_integer("attempt", attempt, low=1)
        request = compiled.request(self._version, block=self._block, attempt=again)
        return self._ledger.fingerprint([json.dumps(request, sort_keys=True).encode()]), request

    def _reserve(self, compiled: Compiled, attempt: int, by: str) -> Charge:
        key, request = self._request(compiled, attempt)
        self._engine.check(self._policy)
        return self._ledger.reserve(
            self._dataset,
            compiled.event,
            key=key,
            request=request,
            block=self._block,
            delta=compiled.charge_delta,
            by=by,
            label="query",
        )

    def _stored_answer(self, compiled: Compiled, charge: Charge) -> Answer:
        if charge.state == "SETTLED":
            return self._answer(compiled, charge, repeated=True)
        if charge.state == "RESERVED":
            raise StillRunning(
                "the same question is being answered, or its process died; it is charged once. Ask again "
                f"later for its answer (the reservation ends {charge.lease_ends:%Y-%m-%d %H:%M} UTC). Or ask "
                "now with a higher attempt, which is charged again."
            )
        raise PrivacyRefusal(
            "this question was charged before, but its answer was lost. The charge stays, since the answer "
            "may have been seen. To ask and pay again, raise attempt by 1, such as to attempt=2."
        )

    def _answer(self, compiled: Compiled, charge: Charge, *, repeated: bool) -> Answer:
        if not isinstance(charge.answer, dict):
            raise PrivacyRefusal(f"the ledger's entry {charge.key!r} is not an answer to a question.")
        epsilon, delta = compiled.stated_cost or self._policy.budget.epsilon_of(charge.cost)
        left = self._ledger.price(self._dataset, Compose(()), block=self._block).remaining
        return read_content(
            charge.answer,
            compiled,
            charge=charge.key,
            epsilon=epsilon,
            delta=delta,
            remaining=left,
            repeated=repeated,
        )
