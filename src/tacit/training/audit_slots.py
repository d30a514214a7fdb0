"""Audit slots: canary records that a run also trains on, to audit it.

Letters: m slots; c included canaries; N real records; n records of a batch; K views; T steps.
"""

# A slot is one entry of a parameter vector that the model never reads.  Canary j has a public sign s_j, a
# public strength k_j and a secret fair coin.  If the coin includes it, it is one more record, with the loss
# k_j s_j slot[j], whose gradient is nonzero only in entry j.  All else is as in any run; before the
# optimizer's step, the slots' entries are taken from the released gradients.

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias, TypeVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.clipping.engine import PerExampleLoss
from tacit.clipping.isolation import model_checks
from tacit.clipping.per_example.use import widened_type
from tacit.clipping.reference import ReferenceEngine
from tacit.clipping.rules import PerLayerClipping
from tacit.errors import InvalidInput, PrivacyRefusal, check_integer, check_real
from tacit.events import Adjacency
from tacit.files import write_atomically
from tacit.noise.generator import Generator, Purpose
from tacit.plan import Plan
from tacit.sampling import ByDate, CyclicPoissonSampling, TruncatedPoissonSampling
from tacit.sampling.samplers import Indices
from tacit.training.part import Part
from tacit.training.records import DrawnRecords, Records, Wrapped

_LARGEST_SHARE = 0.1  # the largest share of canaries in an expected batch: a model learns nothing from them
_LEAST_STRENGTH = 2.0  # in units of C: a canary below C would not show a missing clip
_SLOTS, _MODEL = "slots.weight", "model."  # names in the model that the engine sees
_TensorType = TypeVar("_TensorType", bound=Tensor)


@dataclass(frozen=True)
class AuditSlots:
    """Settings for an audit: the session also trains on artificial records, called canaries.

    A secret coin flip includes each canary or leaves it out.  Each has a *slot*: an extra parameter that the
    model never reads, and that only this canary's gradient changes.

    Args:
        count: the number of canaries; about half are included.
        strength: the largest norm of a canary's gradient before clipping, in units of the clipping norm.  The
            norms are log-uniform between 2 and ``strength``.

    >>> AuditSlots(1000)
    AuditSlots(count=1000, strength=1000.0)
    """

    count: int
    strength: float = 1000.0

    def __post_init__(self) -> None:
        check_integer("count", self.count, low=1)
        object.__setattr__(self, "strength", check_real("strength", self.strength, low=_LEAST_STRENGTH))

    def check_plan(self, plan: Plan) -> None:
        """Refuse a plan that does not support audit slots.

        Raises:
            PrivacyRefusal: if canaries do not work with the plan's adjacency, sampling, correlated noise or
                ``rows_per_user``.
            InvalidInput: if the plan clips per layer, or has too few records for ``count`` canaries.
        """
        if plan.adjacency is not Adjacency.ADD_REMOVE:
            raise PrivacyRefusal(
                f"audit slots add synthetic records at random, but adjacency {plan.adjacency} fixes the "
                'number of records. Audit a plan with adjacency="add-remove" and the same noise.'
            )
        if isinstance(plan.sampling, CyclicPoissonSampling | ByDate):
            raise PrivacyRefusal(
                "audit slots do not support batches in a cycle or by date, where a synthetic record would be "
                "in only one part of the cycle, or one step. Audit a plan with Poisson samples or full "
                "batches and the same noise."
            )
        if isinstance(plan.sampling, TruncatedPoissonSampling):
            raise PrivacyRefusal(
                "audit slots do not support largest_batch: their synthetic records would displace each "
                "other, but must be independent. Audit a plan without largest_batch and with the same noise."
            )
        if plan.correlation is not None:
            raise PrivacyRefusal(
                "audit slots do not support noise correlated over steps. Audit a plan without correlation."
            )
        if plan.rows_per_user is not None:
            raise PrivacyRefusal(
                "audit slots do not support rows_per_user. They test the cost of one record, not of a "
                f"{plan.unit} with {plan.rows_per_user} rows. Audit a plan without rows_per_user, in which "
                "each owner is one record."
            )
        if isinstance(plan.clipping, PerLayerClipping):
            raise InvalidInput(
                "audit slots do not support clipping per layer: they would be one more layer, and change the "
                "bounds of the others. Audit with flat, automatic or adaptive clipping."
            )
        most = int(2 * _LARGEST_SHARE * plan.records)
        if self.count > most:
            raise InvalidInput(
                f"{self.count} audit slots are too many for {plan.records} records. About half become "
                f"synthetic records, which may be at most {100 * _LARGEST_SHARE:g} % of all. Use at most "
                f"{most} slots, or more records."
            )


@final
@dataclass(frozen=True, eq=False)
class SlotEvidence:
    """The data of a run with slots, for its audit.

    ``observed`` (T, m), float32, are the slots' entries of the released noisy sums, divided by sign and
    clipping norm.  The guarantee of the run covers them.  ``included`` (m,), bool, are the coins.  They
    reveal nothing about real records, but must stay secret until the audit, or it proves nothing.

    >>> evidence = SlotEvidence(np.zeros((10, 200), np.float32), np.arange(200) < 100)
    >>> evidence.observed.shape, int(evidence.included.sum())
    ((10, 200), 100)
    """

    observed: NDArray[np.float32]
    included: NDArray[np.bool_]

    def save(self, observed: Path, coins: Path) -> None:
        """Write both arrays as NumPy files; only the owner of the file can read the coins."""
        for path, array, mode in ((observed, self.observed, 0o644), (coins, self.included, 0o600)):
            write_atomically(path, _saver(array), mode=mode)

    @staticmethod
    def load(observed: Path, coins: Path) -> SlotEvidence:
        """Read the two files that :meth:`save` wrote.

        Raises:
            InvalidInput: if a file is missing or damaged, or the two belong to different runs.
        """
        x, included = _read(observed), _read(coins)
        fits = x.ndim == 2 and x.shape[1:] == included.shape
        if not (fits and x.dtype == np.float32 and included.dtype == np.bool_):
            raise InvalidInput(
                f"{observed} and {coins} are not the two files of one audit: they contain {x.dtype} of shape "
                f"{x.shape} and {included.dtype} of shape {included.shape}. Pass both files of one run."
            )
        return SlotEvidence(np.asarray(x, dtype=np.float32), np.asarray(included, dtype=np.bool_))


def _saver(array: NDArray[np.float32] | NDArray[np.bool_]) -> Callable[[IO[bytes]], object]:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return lambda file: file.write(buffer.getbuffer())


_AnyArray: TypeAlias = NDArray[np.generic]


def _read(path: Path) -> _AnyArray:
    try:
        array: _AnyArray = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise InvalidInput(
            f"there is no {path}: the run has no audit slots, or is not finished. Train with [audit] slots = "
            "1000 in its configuration."
        ) from None
    except (ValueError, EOFError, OSError):
        raise InvalidInput(f"{path} is damaged, so this run cannot be audited. Train it again.") from None
    return array


class _ModelWithSlots(nn.Module):
    """The model, then the slots; in this order the model's noise is the same as without slots."""

    def __init__(self, model: nn.Module, count: int) -> None:
        super().__init__()
        model_checks.check_model(model)
        like = next(p for p in model.parameters() if p.requires_grad)
        self.model = model
        self.slots = nn.Embedding(count, 1, dtype=like.dtype, device=like.device)
        nn.init.zeros_(self.slots.weight)


@final
class Planted(Part):
    """The slots of one run: its coins, and the slots' entries of the releases so far.

    **Guarantee**

    * The gradient of canary j is k_j s_j in entry j and 0 elsewhere.  The gradient of a real record is 0 in
      every slot.
    * Coins, signs and strengths are functions of the run's key, and use random numbers that neither the noise
      nor the samples use.
    """

    def __init__(
        self, request: AuditSlots, model: nn.Module, loss: PerExampleLoss, plan: Plan, generator: Generator
    ) -> None:
        request.check_plan(plan)
        self.request, self._plan, self._user_loss = request, plan, loss
        self.model = _ModelWithSlots(model, request.count)
        self._report = plan.loss_report
        self._observed: list[NDArray[np.float32]] = []
        self.draw(generator)

    def draw(self, generator: Generator) -> None:
        m = self.request.count

        def uniforms(index: int) -> NDArray[np.float64]:
            words = generator.words(m, purpose=Purpose.AUDIT, step=0, index=index)
            return (words >> np.uint64(11)).astype(np.float64) / 2.0**53

        self._included: NDArray[np.bool_] = uniforms(0) < 0.5
        self._signs = np.where(uniforms(1) < 0.5, -1.0, 1.0)
        ratio = self.request.strength / _LEAST_STRENGTH
        strength = self._plan.clipping.norm * _LEAST_STRENGTH * ratio ** uniforms(2)
        pulls = torch.from_numpy(np.concatenate([[0.0], strength * self._signs]))
        self._pulls = pulls.to(self.model.slots.weight)

    @property
    def slots_in(self) -> NDArray[np.int64]:
        return np.flatnonzero(self._included).astype(np.int64)

    def loss(self, planted: nn.Module, *batch: Tensor) -> Tensor:
        """Return the losses (n K,): the user's loss for a real record, the slot's loss for a canary.

        The last tensor of the batch is 0 for a real record and j + 1 for canary j.  A canary's loss is half
        of the bound of a loss report, which the report subtracts, so it adds 0 to the sum.
        """
        slot = batch[-1]
        losses = self._user_loss(self.model.model, *batch[:-1])
        entry = self.model.slots((slot - 1).clamp(min=0))[..., 0]
        middle = 0.0 if self._report is None else self._report.bound / 2
        canary = (middle + self._pulls[slot] * entry).to(losses.dtype)
        return torch.where(slot > 0, canary, losses)

    def check_blank(self, blank: tuple[Tensor, ...], rows: int) -> None:
        """Refuse a model without finite gradient on a row of zeros, where no canary would count."""
        K = self._plan.views * rows
        device = self.model.slots.weight.device
        batch = [part.expand(K, *part.shape[1:]).to(device) for part in blank]
        slot = torch.ones(K, dtype=torch.int64, device=device)
        rule = self._plan.clipping
        engine = ReferenceEngine(
            self.model, self.loss, rule, views=K
        )  # a separate engine, because an engine stores facts about the batches that it sees
        sums = {
            name: torch.zeros_like(p, dtype=widened_type(p.dtype)) for name, p in engine.parameters.items()
        }
        limits = torch.tensor(rule.initial_thresholds(engine.names), dtype=torch.float64, device=device)
        present = torch.ones(1, dtype=torch.bool, device=device)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            statistics = engine.add_clipped_sum(sums, (*batch, slot), present, limits)
        if not bool(statistics.raw_norms.isfinite().all()):
            raise InvalidInput(
                "the loss has no finite gradient at a record of zeros, which audit slots use. If model or "
                "loss has a function with an infinite slope at 0 (sqrt, log, norms), add a small constant to "
                "its argument."
            )

    def released(self, step: int, gradients: dict[str, Tensor], thresholds: list[float]) -> dict[str, Tensor]:
        """Remove and store the slots' entries of a release; return the rest by the model's names."""
        mean = gradients[_SLOTS][:, 0].double().cpu().numpy()
        x = mean * self._plan.expected_batch_size / (self._signs * thresholds[0])
        self._observed.append(x.astype(np.float32))
        return self.without_slots(gradients)

    def without_slots(self, tensors: Mapping[str, _TensorType]) -> dict[str, _TensorType]:
        return {name.removeprefix(_MODEL): tensor for name, tensor in tensors.items() if name != _SLOTS}

    def evidence(self, done: int) -> SlotEvidence:
        """Return the slots' entries of the releases of all ``done`` steps, and the coins."""
        if done < self._plan.steps:
            raise InvalidInput(
                f"{done} of the plan's {self._plan.steps} steps are done, but the audit is of the whole run. "
                "Take the remaining steps; until then, the included canaries stay secret."
            )
        return SlotEvidence(self._stacked(), self._included.copy())

    def facts(self, key: bytes) -> dict[str, Any]:
        return {"slots": repr(self.request)}

    def state(self, done: int) -> dict[str, Any]:
        return {"slots": torch.from_numpy(self._stacked())}  # the coins follow from the key

    def load(self, state: Mapping[str, Any], generator: Generator) -> None:
        self._observed = list(state["slots"].numpy())
        self.draw(generator)

    def _stacked(self) -> NDArray[np.float32]:
        empty = np.zeros((0, self.request.count), dtype=np.float32)
        return np.stack(self._observed) if self._observed else empty


@final
class WithCanaries(Wrapped):
    """N records, then the included canaries, which are records of zeros with the number of a slot.

    The first canary of a batch is second, for the engine's check of the first few records.
    """

    def __init__(self, records: Records, planted: Planted) -> None:
        if len(records) == 0:
            raise InvalidInput("data is empty, and audit slots need records. Pass at least one record.")
        if isinstance(records, DrawnRecords):
            raise InvalidInput(
                "audit slots cannot be added to batches drawn in advance. Audit a run of the same plan whose "
                "session draws its batches."
            )
        super().__init__(records)
        self._planted = planted
        none = records.take(np.empty(0, dtype=np.int64), seed=0)
        self._blank = tuple(part.new_zeros((1, *part.shape[1:])) for part in none)
        planted.check_blank(self._blank, records.rows)

    def __len__(self) -> int:
        return len(self.inner) + len(self._planted.slots_in)

    def take(self, indices: Indices, *, seed: int) -> tuple[Tensor, ...]:
        real, canary = indices[indices < len(self.inner)], indices[indices >= len(self.inner)]
        slots = self._planted.slots_in[canary - len(self.inner)]
        parts = [blank.expand(len(canary) * self.rows, *blank.shape[1:]) for blank in self._blank]
        if len(real) > 0:
            records = self.inner.take(real, seed=seed)
            parts = [torch.cat([a, b.to(a)]) for a, b in zip(records, parts, strict=True)]
        number = torch.from_numpy(
            np.concatenate([np.zeros(len(real), dtype=np.int64), slots + 1]).repeat(self.rows)
        )
        # Real records, then canaries, but the first canary in second position.
        places = torch.arange(len(indices))
        if len(real) > 1 and len(canary) > 0:
            end = len(real)
            places = torch.cat([places[:1], places[end : end + 1], places[1:end], places[end + 1 :]])
        order = (places[:, None] * self.rows + torch.arange(self.rows)).flatten()
        return tuple(part[order.to(part.device)] for part in (*parts, number))
