"""Private averages of clients' updates, for federated learning."""

# A round is a step of the plan, and a client is one of its records.
#
# **Guarantee**
#
# * A round releases ``(sum of clipped updates + N(0, (z C)^2 I)) / B``, and the noisy count behind the next
#   threshold of adaptive clipping.  Together they are one Gaussian release with ``plan.noise_multiplier``.
# * Each update is clipped over all its arrays, before the sum, and added at most once in a round.  The sum
#   begins with the noise, in double precision, and goes through the clients by number.
# * The plan's sampler draws the clients of a round from all public numbers.  Only their updates are added.
# * A client that does not answer, or whose update is not finite, adds nothing.  No error says so.
# * The divisor is the plan's public B, whatever the number of answers.
# * The steps of the plan are taken in order and each at most once.  No clients are drawn before the ledger
#   has committed the charge that covers the round.
# * No process finishes a round that another one has finished with the same key: clients would answer
#   otherwise, and the same noise would be added to another sum.  So a round is written to ``state`` before it
#   is released, and a process cannot finish rounds once a newer one has resumed from its state.
#
# **Assumed**
#
# * A client's update depends on what was released and on that client's data alone, and so does whether it
#   answers.  Each client has one number.
# * Nobody but the server and the client itself learns whether the client was drawn, or sees its update.

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.errors import BudgetExceeded, InvalidInput, PrivacyRefusal
from tacit.events import event_to_json
from tacit.noise.gaussian import gaussian
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.rounding import shown_epsilon
from tacit.sampling import ByDate
from tacit.training.charges import Payment, StepCharges
from tacit.training.ranks import Alone, check_one_process
from tacit.training.released import check_release
from tacit.training.resume import check_same_run, load_state, save_state
from tacit.training.run import key_of_run
from tacit.training.step import next_thresholds

Arrays = TypeVar("Arrays", bound=list[NDArray[Any]] | dict[str, NDArray[Any]])
_OF_RECORDS = ("correlation", "loss_report", "score_report", "rows_per_user")


class PrivateAggregation(Generic[Arrays]):
    """The server of private federated learning: draws the clients of each round, and averages their updates.

    You send the weights to these clients and collect their updates, by any transport.  For Flower, use
    :class:`tacit.integrations.flower.PrivateFedAvg`.

    Args:
        plan: the rounds and their privacy cost.  ``plan.steps`` is the number of rounds, ``plan.records`` the
            public number of clients, and ``plan.unit`` your word for a client, such as "hospital".
        like: an example of an update, such as the weights: a list or dictionary of NumPy arrays of floats.
            Only names, shapes and types matter.
        state: the path of the resume state, which contains the *secret key of the noise*; None for no file.
            If the file exists, the rounds resume from it.  :meth:`finish` writes it before returning.
        charges: the :class:`StepCharges` that charge the rounds to a ledger of privacy budgets; None without
            a ledger.
        generator: the source of the noise, for tests only (:mod:`tacit.testing`).  Default: a fresh secret
            key.

    Raises:
        InvalidInput: if ``like`` is not made of float arrays, or clients do not support a setting of the
            plan, such as ``rows_per_user``.
        PrivacyRefusal: if the file ``state`` belongs to another run.

    >>> plan = Plan.with_noise(noise_multiplier=2.0, delta=1e-3, records=100, batch_size=20, steps=10,
    ...     clipping=1.0, adjacency="add-remove", unit="client")
    >>> weights = [np.zeros((3, 2)), np.zeros(2)]
    >>> aggregation = PrivateAggregation(plan, weights)
    >>> for _ in range(10):
    ...     drawn = aggregation.begin()
    ...     updates = {client: [np.ones((3, 2)), np.ones(2)] for client in drawn}  # from their machines
    ...     weights = [w + u for w, u in zip(weights, aggregation.finish(updates))]
    >>> aggregation.steps_done, aggregation.epsilon == plan.epsilon
    (10, True)
    """

    def __init__(
        self,
        plan: Plan,
        like: Arrays,
        *,
        state: Path | str | None = None,
        charges: StepCharges | None = None,
        generator: Generator | None = None,
    ) -> None:
        check_one_process()
        _check_plan(plan)
        self._plan, self._named = plan, isinstance(like, dict)
        arrays = _checked(like)
        self._kinds = {name: (array.shape, array.dtype) for name, array in arrays.items()}
        self._groups = plan.clipping.groups([*arrays])
        self._thresholds = plan.clipping.initial_thresholds([*arrays])
        self._payment = Payment(charges, None, lambda: [lambda: None], Alone())
        self._generator = key_of_run(generator, plan, None, charges)
        self._done = 0
        self._drawn: frozenset[int] | None = None  # the clients of the open round
        self._released: dict[str, NDArray[Any]] | None = None
        self._path, self._process = None if state is None else Path(state), secrets.token_hex(16)
        if self._path is not None:
            if self._path.exists():
                self._load(self._path)
            self._save(self._done, self._thresholds, self._released)

    @property
    def plan(self) -> Plan:
        """The plan: the rounds and their cost."""
        return self._plan

    @property
    def steps_done(self) -> int:
        """The number of finished rounds."""
        return self._done

    @property
    def epsilon(self) -> float:
        """The epsilon spent by the finished rounds, at the plan's delta."""
        return self._plan.epsilon_after([self._done])[0]

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The clipping norm in the next round for each group of parameters, (G,).

        Flat clipping has one group.
        """
        return tuple(self._thresholds)

    @property
    def released(self) -> Arrays | None:
        """The noisy mean of the last finished round, which a resume restores; None before the first."""
        return None if self._released is None else self._as_given(self._released)

    @property
    def private(self) -> bool:
        """True if the noise is secret; False with a generator of :mod:`tacit.testing`."""
        return self._generator.secure

    @property
    def randomness(self) -> str:
        """The name of the random number generator, for the privacy statement."""
        return self._generator.name

    @property
    def route(self) -> str:
        """The origin of the sums, for the privacy statement: always ``"clients"``."""
        return "clients"

    @property
    def charges(self) -> StepCharges | None:
        """The :class:`StepCharges` that you passed; None without a ledger."""
        return self._payment.charges

    @property
    def stopped(self) -> str | None:
        """The reason why the ledger ended the run early; None if it did not."""
        refusal = self._payment.refusal
        return None if refusal is None else str(refusal)

    def begin(self) -> list[int]:
        """Begin the next round: charge its privacy cost, and draw its clients at random.

        Returns:
            The numbers of the clients to ask for an update, in ``range(plan.records)``.  Keep them secret.
                Call :meth:`finish` even if the list is empty.

        Raises:
            BudgetExceeded: if all rounds of the plan are done, or the ledger has too little budget left.
            PrivacyRefusal: if the previous round is not finished.
        """
        if self._drawn is not None:
            raise PrivacyRefusal(
                f"round {self._done} is not finished. Call finish with the updates of its clients, or "
                "finish({}) if none has answered."
            )
        if self._done >= self._plan.steps:
            raise BudgetExceeded(
                f"all {self._plan.steps} rounds of the plan are done, and its epsilon of "
                f"{shown_epsilon(self._plan.epsilon)} is spent. To train longer, plan more steps before "
                "the first round."
            )
        if not self._payment.is_paid(self._done) and self._payment.refusal is not None:
            raise self._payment.refusal
        drawn = self._plan.sampling.indices(self._generator, self._done, self._plan.records)
        self._drawn = frozenset(drawn.tolist())
        return sorted(self._drawn)

    def finish(self, updates: Mapping[int, Arrays]) -> Arrays:
        """End the round, and return the noisy mean of the clients' updates, in arrays like ``like``.

        Args:
            updates: a dictionary from a client's number to its update: the changes of the weights, in arrays
                like ``like``.  Clients that did not answer add nothing.

        Raises:
            PrivacyRefusal: if no round has begun, or an update is from a client that was not drawn.  Also if
                the round was already released with other updates, or another process has resumed from
                ``state``.
            InvalidInput: if an update has other names, shapes or types than ``like``.  The round stays open.
        """
        step, plan = self._done, self._plan
        if self._drawn is None:
            raise PrivacyRefusal("no round has begun. Call begin, and ask the clients that it returns.")
        if not isinstance(updates, Mapping):
            raise InvalidInput(
                f"updates must be a dictionary {{client number: arrays}}; got {type(updates).__name__}. Call "
                "finish again with a dictionary."
            )
        of_clients = {number: self._update_of(number, update) for number, update in updates.items()}
        scale = 1.0 / plan.expected_batch_size
        std = scale * plan.gradient_noise_multiplier * plan.clipping.sensitivity(self._thresholds)
        sums = {
            name: gaussian(
                self._generator, shape, std=std, step=step, index=index, dtype=torch.float64
            ).numpy()
            for index, (name, (shape, _)) in enumerate(self._kinds.items())
        }
        raw_below = 0.0
        for number in sorted(of_clients):
            raw_below += self._add_clipped(sums, of_clients[number], scale)
        thresholds = next_thresholds(plan, self._thresholds, raw_below, self._generator, step)
        with np.errstate(over="ignore"):  # of float16
            released = {name: sums[name].astype(dtype) for name, (_, dtype) in self._kinds.items()}

        check_release(self._generator, step, {name: torch.from_numpy(sums[name]) for name in sums})
        self._save(step + 1, thresholds, released)
        self._done, self._thresholds, self._released = step + 1, thresholds, released
        self._drawn = None
        self._payment.after(step, None)
        return self._as_given(released)

    def _add_clipped(
        self, sums: dict[str, NDArray[Any]], update: dict[str, NDArray[Any]], scale: float
    ) -> float:
        """Add a client's clipped update; return the number of norms below the threshold, minus 1/2."""
        wide = {name: array.astype(np.float64) for name, array in update.items()}
        with np.errstate(all="ignore"):  # a warning would tell that a client has such numbers
            norms = [
                np.sqrt(sum(np.vdot(wide[name], wide[name]) for name in group)) for group in self._groups
            ]
        limits = torch.tensor(self._thresholds, dtype=torch.float64)
        factors = self._plan.clipping.factors(torch.tensor([norms], dtype=torch.float64), limits)[0].tolist()
        if np.isfinite(norms).all():
            for factor, group in zip(factors, self._groups, strict=True):
                for name in group:
                    sums[name] += scale * factor * wide[name]
        return float(norms[0] <= self._thresholds[0]) - 0.5

    def _update_of(self, number: int, update: Arrays) -> dict[str, NDArray[Any]]:
        if number not in (self._drawn or ()):
            raise PrivacyRefusal(
                f"client {number!r} was not sampled in round {self._done}, so the plan's cost does not cover "
                "its update. Ask only the clients that begin returns, and pass only their updates."
            )
        arrays = _checked(update, f"the update of client {number}")
        kinds = {name: (array.shape, array.dtype) for name, array in arrays.items()}
        for name in {**self._kinds, **kinds}:
            if (due := self._kinds.get(name)) != (got := kinds.get(name)):
                raise InvalidInput(
                    f"the update of client {number} has array {name!r} as {_shown(got)}; it must be "
                    f"{_shown(due)}. Send arrays like those of the aggregation, or leave this client out."
                )
        return {name: arrays[name] for name in self._kinds}

    def _as_given(self, arrays: dict[str, NDArray[Any]]) -> Arrays:
        copies = {name: array.copy() for name, array in arrays.items()}
        return cast(Arrays, copies if self._named else [*copies.values()])

    def _identity(self) -> str:
        facts = {
            "plan": repr(self._plan),
            "event": event_to_json(self._plan.event),
            "parameters": repr({name: (*shape, str(dtype)) for name, (shape, dtype) in self._kinds.items()}),
            "versions": {},
        }
        return json.dumps(facts)

    def _save(self, done: int, thresholds: list[float], released: dict[str, NDArray[Any]] | None) -> None:
        """Write the state after ``done`` rounds, unless another process has resumed from it."""
        if self._path is None:
            return
        if self._path.exists() and self._done < done and load_state(self._path)["process"] != self._process:
            raise PrivacyRefusal(
                f"another process has resumed the rounds of {self._path}. Both would add the same noise to "
                "different sums, whose difference has no noise. Continue in the newer process, or start a "
                "new run with another file."
            )
        key, secure = self._generator.secret_state()
        tensors = {name: torch.from_numpy(array) for name, array in (released or {}).items()}
        state = {
            "run": self._identity(), "key": key, "secure": secure, "done": done, "thresholds": thresholds,
            "released": tensors, "process": self._process,
        }  # fmt: skip
        save_state(self._path, state | self._payment.state(done))

    def _load(self, path: Path) -> None:
        state = load_state(path)
        check_same_run(path, json.loads(state["run"]), json.loads(self._identity()))
        self._generator = Generator(state["key"], secure=state["secure"])
        self._payment.load(state, self._generator)
        self._done, self._thresholds = state["done"], state["thresholds"]
        self._released = {name: array.numpy() for name, array in state["released"].items()} or None


def _checked(arrays: object, what: str = "like") -> dict[str, NDArray[Any]]:
    """Return arrays by name; those of a list have their positions as names."""
    named = arrays if isinstance(arrays, dict) else None
    if isinstance(arrays, list):
        named = {str(position): array for position, array in enumerate(arrays)}
    if not named:
        raise InvalidInput(
            f"{what} must be a list of NumPy arrays, or a dictionary of them by name, and not empty; got "
            f"{type(arrays).__name__}."
        )
    for name, array in named.items():
        if not isinstance(array, np.ndarray) or array.dtype not in (np.float16, np.float32, np.float64):
            got = str(array.dtype) if isinstance(array, np.ndarray) else type(array).__name__
            raise InvalidInput(
                f"array {name!r} of {what} must be a NumPy array of float16, float32 or float64; got {got}. "
                "Send only parameters, not counters, and convert tensors with tensor.detach().numpy()."
            )
    return named


def _shown(kind: tuple[tuple[int, ...], np.dtype[Any]] | None) -> str:
    return "nothing" if kind is None else f"{kind[1]} of shape {kind[0]}"


def _check_plan(plan: Plan) -> None:
    if not isinstance(plan, Plan):
        raise InvalidInput(
            "plan must be a tacit.Plan; make one with Plan.calibrate(epsilon=..., delta=..., ...); got "
            f"{type(plan).__name__}."
        )
    present = [name for name in _OF_RECORDS if getattr(plan, name) is not None]
    present += ["preparation"] * bool(plan.preparation) + ["views"] * (plan.views > 1)
    present += ["batches by date"] * isinstance(plan.sampling, ByDate)
    if present:
        raise InvalidInput(
            f"an aggregation does not support {', '.join(present)}: it sums one update per client and round, "
            "with independent noise. Remove it from the plan."
        )
