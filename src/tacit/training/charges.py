"""The charges of a training run to a ledger, and the checks that plan and policy agree."""

# Each chunk of steps is one charge, reserved before its first step and settled after its last; chunks that
# are never reached cost nothing.
#
# **Guarantee**
#
# * No step is taken, and no preparation begun, before the ledger has committed a charge that covers it.
#   The first of several ranks charges, and the others wait for it.
# * A chunk is charged once, even after a crash: the run's id, and so its charges' keys, follow from the key
#   of its noise.  Only a process with this key may take the steps of a reserved chunk.
# * Plan and data set have the same unit of privacy and adjacency, and the number of records fits.
# * The ledger refuses arrays of records that it knows under another name with a separate budget.
# * Batches that another run has claimed are refused before anything is charged, and claimed before anything
#   is released.
#
# A repeated step is no second release, as its randomness is a function of the key and of the step, and a
# session refuses to use a saved key with another plan, records, model or loss.  So the resume state may be
# older than the charges.  Without it the charge stays spent, and a new run has a new key and pays again.

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Mapping
from decimal import ROUND_FLOOR
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import BudgetExceeded, InvalidInput, PrivacyRefusal, check_integer
from tacit.events import Compose, Event
from tacit.ledger import ApproximateBudget, Ledger, Policy
from tacit.ledger.ledger import ChargedRun, charge_key, charged_run, once_key
from tacit.ledger.policy import OWNED_BY
from tacit.ledger.records import Charge, Json, LeaseLost
from tacit.noise.generator import Generator, Purpose
from tacit.plan import Plan
from tacit.rounding import shown_epsilon
from tacit.sampling.samplers import Indices
from tacit.training.part import Part
from tacit.training.ranks import Ranks, check_one_process
from tacit.training.records import Content, DrawnRecords

_CHUNKS = 20  # the number of charges of a run, unless the user sets the steps in a chunk


def delta_to_charge(ledger: Ledger, policy: Policy, plan: Plan) -> float | None:
    """Return the plan's delta if the budget, or a parent's, counts (epsilon, delta); otherwise None."""
    while not isinstance(policy.budget, ApproximateBudget):
        if policy.parent is None:
            return None
        policy = ledger.policy(policy.parent)
    return plan.delta


def chunk_size(plan: Plan, chunk: int | None, *, whole: bool) -> int:
    """Return the number of steps in a charge, a multiple of the charging unit; all if ``whole``."""
    if whole:
        if chunk not in (None, plan.steps):
            raise InvalidInput(
                f"chunk must be the whole plan for this dataset; got {chunk!r}. The dataset's budget counts "
                "(epsilon, delta), and parts would cost far more than the whole. Remove chunk."
            )
        return plan.steps
    size = -(-plan.steps // _CHUNKS) if chunk is None else check_integer("chunk", chunk, low=1)
    unit = plan.charging_unit
    return -(-size // unit) * unit


def check_promise(
    dataset: str, policy: Policy, plan: Plan, one_record_per_unit: bool, owned_by: str | None = None
) -> None:
    if plan.unit != policy.unit:
        raise PrivacyRefusal(
            f"the plan's unit is {plan.unit!r}, but that of data set {dataset!r} is {policy.unit!r}, so they "
            f"cannot share a budget. If each record is one {policy.unit}, plan with unit={policy.unit!r}. "
            "Otherwise open the records as another data set."
        )
    if plan.adjacency is not policy.relation:
        raise PrivacyRefusal(
            f"the plan's adjacency is {plan.adjacency}, but that of data set {dataset!r} is "
            f"{policy.relation}, so they cannot share a budget. Plan with "
            f"adjacency={policy.relation.value!r}."
        )
    if owned_by is not None and policy.unit_column is not None and owned_by != policy.unit_column:
        raise PrivacyRefusal(
            f"training counts by column {owned_by!r}, but dataset {dataset!r} counts by "
            f"{policy.unit_column!r}. The two may mean different people. Train with column "
            f"{policy.unit_column!r} as the owners."
        )
    if policy.unit_column is not None and not one_record_per_unit and owned_by is None:
        tests = "" if plan.score_report is None else "nor two of the test records, "
        raise PrivacyRefusal(
            f"{dataset!r} counts by column {policy.unit_column!r}, but training counts records, and one "
            f"{policy.unit} may have several. Train on UserRecords with charges "
            f"owned_by={policy.unit_column!r}; in a run file, set [data] user and rows_per_user. If no "
            f"{policy.unit} has two of the training records, {tests}set one_record_per_unit=True; in a run "
            "file, [ledger] one_record_per_unit = true. The ledger records this claim."
        )
    most = policy.largest_table if policy.public_records is None else policy.public_records
    if plan.records > most:
        raise PrivacyRefusal(
            f"the plan has {plan.records} records, but the policy of {dataset!r} allows at most {most}. Plan "
            f"with the true number, at most records={most}."
        )


def register(
    ledger: Ledger, dataset: str, content: Iterable[bytes | memoryview] | None, *, block: str | None
) -> None:
    """Store the fingerprint of a run's records in ``ledger``, unless ``content`` is None."""
    if content is not None:
        ledger.register_content(dataset, ledger.fingerprint(content), block=block)


_MOST_NOISE = 64.0  # in units of the plan's noise: with more noise a model learns nothing
_LEASE_S = 6 * 3600.0  # after it, another process may count a chunk as lost; its run can still resume it


@final
class StepCharges:
    """Charges the cost of a training run to a privacy budget in a ledger, some steps at a time.

    Args:
        ledger, dataset: the ledger, and the name of the dataset there.
        plan: the plan of the run.
        chunk: the number of steps per charge, rounded up to whole epochs if batches are shuffled.  Default: a
            twentieth of the plan, or the whole plan if the budget counts (epsilon, delta).
        block: the part of the dataset to charge, if it is divided into blocks without common people; None for
            the whole dataset.
        one_record_per_unit: True states that no unit of privacy, such as a patient, has two training records,
            or two test records of a score report.  Required if the dataset's policy names a column of units
            and the plan counts rows.  The ledger records this statement; Tacit cannot check it.
        owned_by: the column with the users, for a session on :class:`~tacit.training.UserRecords`.  If the
            dataset's policy names a column of units, pass this column.
        by: the name of the person who trains, which is public in the ledger's history.  Default: the user of
            the operating system.
        lease_s: the time limit for a chunk, in seconds.  An unfinished chunk then counts as spent.
        ranks: the processes that train together, as in the session; only rank 0 charges.
        generator: the generator of the run's noise, which the session uses too.  Default: a fresh secret key.

    Raises:
        PrivacyRefusal: if the plan's unit or adjacency differs from the policy's.
        UnsupportedEvent: if this kind of budget cannot account for the plan's steps.

    >>> from tacit.ledger import Policy, RenyiBudget
    >>> ledger = Ledger.create("sqlite://")
    >>> policy = Policy(unit="patient", adjacency="add-remove", budget=RenyiBudget(epsilon=3.0, delta=1e-6))
    >>> ledger.open_dataset("visits", policy)
    >>> plan = Plan.with_noise(noise_multiplier=2.0, delta=1e-6, records=1000, batch_size=50, steps=100,
    ...     clipping=1.0, adjacency="add-remove", unit="patient")
    >>> charges = StepCharges(ledger, "visits", plan, chunk=30)
    >>> charges.before(0)  # reserves the cost of steps 0 to 29
    >>> charges.after(29)  # settles the charge, which is then final
    >>> ledger.status("visits").charges["SETTLED"]
    1
    """

    def __init__(
        self,
        ledger: Ledger,
        dataset: str,
        plan: Plan,
        *,
        chunk: int | None = None,
        block: str | None = None,
        one_record_per_unit: bool = False,
        owned_by: str | None = None,
        by: str = "",
        lease_s: float = _LEASE_S,
        ranks: Ranks | None = None,
        generator: Generator | None = None,
    ) -> None:
        if ranks is None:
            check_one_process()
        self._ledger, self._dataset, self._plan, self._block = ledger, dataset, plan, block
        policy = ledger.policy(dataset)
        check_promise(dataset, policy, plan, one_record_per_unit, owned_by)
        self._owned_by = owned_by
        self._owned: dict[str, Json] = {} if owned_by is None else {"owned_by": owned_by}
        self._by_column = "" if owned_by is None else f", {OWNED_BY} {owned_by!r}"
        self._delta = delta_to_charge(ledger, policy, plan)
        self._chunk = chunk_size(plan, chunk, whole=self._delta is not None)
        self._one_record_per_unit = one_record_per_unit
        self._by, self._lease_s = by, lease_s
        self._generator = Generator.from_os() if generator is None else generator
        self._recognised = False
        self._reserved: int | None = None
        self._charge: Charge | None = None  # the charge of the reserved chunk
        self._same_run = generator is None  # no earlier process can have used a fresh key
        ledger.price(dataset, plan.event_between(*self.span(0)), block=block, delta=self._delta)

    @property
    def ledger(self) -> Ledger:
        """The ledger with the budget."""
        return self._ledger

    @property
    def dataset(self) -> str:
        """The name of the dataset in the ledger."""
        return self._dataset

    @property
    def plan(self) -> Plan:
        """The plan of the run."""
        return self._plan

    @property
    def block(self) -> str | None:
        """The charged part of the dataset; None for the whole dataset."""
        return self._block

    @property
    def owned_by(self) -> str | None:
        """The column with the users of the records; None if you named none."""
        return self._owned_by

    @property
    def chunk(self) -> int:
        """The number of steps that one charge covers."""
        return self._chunk

    @property
    def one_record_per_unit(self) -> bool:
        """True if you stated that no unit of privacy has two records."""
        return self._one_record_per_unit

    @property
    def generator(self) -> Generator:
        """The generator of the run's noise.  Use it also for a release before training, such as DP-PCA."""
        return self._generator

    @property
    def run(self) -> str:
        """The run's id, 16 hexadecimal digits.  It is public, although it is derived from the secret key."""
        return f"{int(self._words(1, step=0, index=0)[0]):016x}"

    def so_far(self) -> ChargedRun:
        """Return the ledger's entries of this run, for the privacy statement."""
        return charged_run(self._ledger, self._dataset, self.run)

    def span(self, number: int) -> tuple[int, int]:
        """Return ``(first, stop)`` of chunk ``number``, whose steps are ``range(first, stop)``."""
        return number * self._chunk, min((number + 1) * self._chunk, self._plan.steps)

    def check_fits(self) -> None:
        """Refuse a plan that costs more than the remaining budget.

        Raises:
            Refused: if the plan costs more.  The message says what fits; nothing was charged.
        """
        price = self._ledger.price(self._dataset, self._plan.event, block=self._block, delta=self._delta)
        refusal = price.refusal
        if refusal is None:
            return
        raise refusal.with_message(
            f"the plan's {self._plan.steps} steps exceed the remaining budget of {refusal.dataset!r}: they "
            f"request epsilon {shown_epsilon(refusal.requested)}, and "
            f"{shown_epsilon(refusal.remaining, ROUND_FLOOR)} is left. {self._what_fits()}. Make a plan that "
            "fits, or ask for more budget. Nothing was charged."
        )

    def _what_fits(self) -> str:
        plan = self._plan
        low, high = 0, plan.steps  # low fits, high does not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(plan.event_after(middle)) else (low, middle)
        low -= low % plan.charging_unit
        steps = f"{low} of its steps would fit" if low else "Not one of its steps would fit"

        def noised(noise: float) -> Event:
            return plan.event_with(noise)

        less, more = plan.noise_multiplier, _MOST_NOISE * plan.noise_multiplier
        if not self._fits(noised(more)):
            return f"{steps}, and all of them at no sensible noise"
        while more > 1.001 * less:
            middle_noise = math.sqrt(less * more)
            less, more = (less, middle_noise) if self._fits(noised(middle_noise)) else (middle_noise, more)
        noise = f"a noise multiplier of {more * 1.001:.4g} instead of {plan.noise_multiplier:.4g}"
        return f"{steps}, or all of them with {noise}"

    def recognise(self, *contents: Callable[[], Content]) -> None:
        """Store hashes of the run's records in the ledger, before the first step.

        Each of the ``contents`` is a function that returns records as bytes, or None for a map-style dataset,
        which is skipped.  Pass one, or one for each process with its own records.
        """
        if not self._recognised:
            for content in contents:
                register(self._ledger, self._dataset, content(), block=self._block)
        self._recognised = True

    def start(self) -> None:
        """Reserve the first charge.  Call this before a release that precedes training, such as DP-PCA.

        Raises:
            BudgetExceeded: if the plan costs more than the remaining budget.  The message says what fits.
        """
        if self._reserved is None:
            self._take(0)

    def before(self, step: int) -> None:
        """Reserve the cost of the chunk (steps charged together) of ``step``, unless this run has done so.

        Raises:
            BudgetExceeded: if the chunk costs more than the remaining budget (:class:`tacit.ledger.Refused`).
            PrivacyRefusal: if another run has reserved the chunk, or an earlier process of this run whose
                resume state you have not loaded.
        """
        check_integer("step", step, low=0, high=self._plan.steps - 1)
        number = step // self._chunk
        if number != self._reserved:
            self._take(number)
        if not self._same_run:
            raise PrivacyRefusal(
                f"an earlier process has charged steps of the run {self.run}. Repeating them with other "
                "records or settings would add the same noise to different sums, whose difference has no "
                "noise. Load the run's resume state first: session.load(path)."
            )

    def _take(self, number: int) -> None:
        if number == 0 and not self.charged():
            self.check_fits()
        charge = self._reserve(number)
        if charge.token is not None:
            self._same_run = True
        else:  # an earlier process made the charge, or this one did and lost the ledger's reply
            charge = self._resume(number)
        self._reserved, self._charge = number, charge

    def after(self, step: int) -> None:
        """Settle a charge (make it final) if ``step`` is the last step that it covers."""
        number = step // self._chunk
        first, stop = self.span(number)
        if step + 1 != stop or self._charge is None or self._charge.state == "SETTLED":
            return  # or an earlier process settled it, and these steps are a repetition
        answer: Json = {"steps": [first, stop]}
        try:
            self._ledger.settle(self._charge, answer)
        except LeaseLost:  # the chunk was counted as lost because the steps took long
            self._ledger.settle(self._resume(number), answer)

    def once(self, what: str, release: Callable[[], Json]) -> Json:
        """Call ``release`` and store its result in the ledger; later calls return the stored result.

        Use this for a release that the run's first charge covers; ``what`` names it, such as "score".

        Raises:
            LeaseLost: if another process has meanwhile stored another result.  Publish neither.
            PrivacyRefusal: if no step of the run is charged yet.
        """
        if not self.charged():
            raise PrivacyRefusal(
                f"the {what} of a run is paid for with its first step, which is not charged yet. Take the "
                "steps of the plan first."
            )
        key, token = once_key(self.run, what), self._words(2, step=0, index=2).tobytes().hex()
        charge = self._ledger.reserve(
            self._dataset,
            Compose(()),
            key=key,
            by=self._by,
            label=f"training run {self.run}: {what}, paid for with its first steps{self._by_column}",
            request={"kind": what, "run": self.run},
            block=self._block,
            lease_s=self._lease_s,
            token=token,
        )
        if charge.token is None:
            charge = self._ledger.resume(self._dataset, key, token, lease_s=self._lease_s)
        return charge.answer if charge.state == "SETTLED" else self._ledger.settle(charge, release()).answer

    def state(self) -> dict[str, Any]:
        """Return what the resume state stores about these charges."""
        return {
            "ledger": self._ledger.uuid,
            "dataset": self._dataset,
            "block": self._block,
            "chunk": self._chunk,
            "one_record_per_unit": self._one_record_per_unit,
            **self._owned,
        }

    def generator_of(self, plan: Plan, generator: Generator | None) -> Generator:
        """Return the generator for a session of ``plan``.

        The ledger recognises the run by this generator's key.
        """
        if plan != self._plan:
            raise InvalidInput(
                "charges were made for another plan. Make StepCharges with the session's plan."
            )
        if generator is not None and generator.secret_state() != self._generator.secret_state():
            raise InvalidInput(
                "the session and its charges have different generators. Pass generator only to StepCharges."
            )
        if plan.preparation and self._reserved is None:
            raise PrivacyRefusal(
                "the plan's preparation, which reads the data, is not charged. Call charges.start() before "
                "the preparation, and then make the session."
            )
        return self._generator

    def _take_up(self, generator: Generator) -> None:
        """Continue the charges of this run's earlier process, with the ``generator`` of its resume state."""
        if self._reserved is not None and generator.secret_state() != self._generator.secret_state():
            raise PrivacyRefusal(
                "the charges have another key (the seed of the noise) than the loaded state. Make "
                "StepCharges with generator=saved_generator(path), which has the run's key."
            )
        self._generator, self._same_run = generator, True

    def _fits(self, event: Event) -> bool:
        return self._ledger.price(self._dataset, event, block=self._block, delta=self._delta).fits

    def charged(self) -> bool:
        """Return whether this process, or an earlier one of this run, has reserved the first charge."""
        key = self._key(0)
        history = self._ledger.history(self._dataset)
        return any(entry.kind == "reserve" and entry.body["key"] == key for entry in history)

    def _reserve(self, number: int) -> Charge:
        first, stop = self.span(number)
        return self._ledger.reserve(
            self._dataset,
            self._plan.event_between(first, stop),
            key=self._key(number),
            by=self._by,
            label=self._label(first, stop),
            request=self._request(number),
            block=self._block,
            delta=self._delta,
            lease_s=self._lease_s,
            token=self._token(number),
        )

    def _resume(self, number: int) -> Charge:
        key, token = self._key(number), self._token(number)
        return self._ledger.resume(self._dataset, key, token, lease_s=self._lease_s)

    def _key(self, number: int) -> str:
        first, stop = self.span(number)
        return charge_key(self.run, first, stop)

    def _token(self, number: int) -> str:
        token = self._words(2, step=number, index=1).tobytes()
        return token.hex()

    def _words(self, count: int, *, step: int, index: int) -> NDArray[np.uint64]:
        return self._generator.words(count, purpose=Purpose.LEDGER, step=step, index=index)

    def _label(self, first: int, stop: int) -> str:
        word = f", one record per {self._plan.unit} as stated" if self._one_record_per_unit else ""
        word += self._by_column
        extra = "preparation and " if first == 0 and self._plan.preparation else ""
        extra += "score and " if first == 0 and self._plan.score_report is not None else ""
        key = "" if self._generator.secure else ", NOT PRIVATE (test key)"
        return f"training run {self.run}: {extra}steps {first} to {stop - 1} of {self._plan.steps}{word}{key}"

    def _request(self, number: int) -> dict[str, Json]:
        plan = self._plan
        return {
            "kind": "training",
            "run": self.run,
            "chunk": number,
            "steps": list(self.span(number)),
            "of": plan.steps,
            "sampler": plan.sampling.describe(),
            "noise_multiplier": plan.noise_multiplier,
            "clipping": repr(plan.clipping),
            "records": plan.records,
            "preparation": number == 0 and bool(plan.preparation),
            **({"score": repr(plan.score_report)} if number == 0 and plan.score_report is not None else {}),
            "one_record_per_unit": self._one_record_per_unit,
            **self._owned,
            "private": self._generator.secure,
        }


@final
class Payment(Part):
    """The charges of a session, and the batches that were drawn before its run; ``charges`` are rank 0's."""

    def __init__(
        self,
        charges: StepCharges | None,
        batches: DrawnRecords | None,
        contents: Callable[[], list[Callable[[], Content]]],
        ranks: Ranks,
    ) -> None:
        self.charges = charges if ranks.first else None
        self.refusal: BudgetExceeded | None = None
        self._charged = ranks.from_first(lambda: charges is not None)
        self._batches, self._ranks = batches, ranks
        self._read, self._contents = contents, list[Callable[[], Content]]()
        self._name = secrets.token_hex(16)
        self.idle = not self._charged and batches is None

    def before(self, step: int, indices: Indices) -> None:
        self._pay(step)

    def _pay(self, step: int) -> None:
        if self._charged and not self._contents:
            self._contents = self._read()
        self._ranks.from_first(lambda: self._pay_here(step))

    def _pay_here(self, step: int) -> None:
        if self._batches is not None:
            self._batches.check_free(self._name)
        if self.charges is not None:
            self.charges.recognise(*self._contents)
            self.charges.before(step)

    def is_paid(self, step: int) -> bool:
        try:
            if not self.idle:
                self._pay(step)
        except BudgetExceeded as refusal:
            if step == 0:
                raise
            self.refusal = refusal
            return False
        self.refusal = None
        return True

    def released(self, step: int, gradients: dict[str, Tensor], thresholds: list[float]) -> dict[str, Tensor]:
        if (batches := self._batches) is not None:
            self._ranks.from_first(lambda: batches.claim(self._name))
        return gradients

    def after(self, step: int, loss: float | None) -> None:
        if self.charges is not None:
            self.charges.after(step)

    def state(self, done: int) -> dict[str, Any]:
        return {"charges": None if self.charges is None else self.charges.state(), "name": self._name}

    def load(self, state: Mapping[str, Any], generator: Generator) -> None:
        if self._ranks.first:
            now = None if self.charges is None else self.charges.state()
            if now != (before := state["charges"]):
                raise PrivacyRefusal(
                    f"the run was charged to {_account(before)}, but this session is charged to "
                    f"{_account(now)}. Continue with the charges of the run, or start a new run."
                )
            if self.charges is not None:
                self.charges._take_up(generator)
        self._name = state["name"]


def _account(state: object) -> str:
    if not isinstance(state, dict):
        return "no ledger"
    return ", ".join(f"{name} {value}" for name, value in state.items())
