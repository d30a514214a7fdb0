"""Payment for steps: the ledger commits the charge of a step before the step reads anything.

**Guarantee**

* A session takes no step before the ledger has committed the charge that covers it.  The first of several
  ranks charges, and the others wait for it.
* If batches were drawn before the run, the session checks that no other run has claimed them before it
  charges anything, and claims them for this run before it releases anything.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

from torch import Tensor

from tacit.errors import BudgetExceeded, PrivacyRefusal
from tacit.noise.generator import Generator
from tacit.sampling.base import Indices
from tacit.training.data.prefetch import DrawnRecords
from tacit.training.part import Part
from tacit.training.parts.ledger_charges import StepCharges
from tacit.training.ranks.processes import Ranks


@final
class Payment(Part):
    """The charges of a session, and the batches that were drawn before its run, if there are any.

    Args:
        content: returns the records as bytes, for the ledger's fingerprint.

    Attributes:
        charges: the charges at rank 0; None at the other ranks.
        refusal: the ledger's refusal that ended the run; None if there was none.
    """

    def __init__(
        self,
        charges: StepCharges | None,
        batches: DrawnRecords | None,
        content: Callable[[], Iterable[bytes | memoryview] | None],
        ranks: Ranks,
    ) -> None:
        self.charges = charges if ranks.first else None
        self.refusal: BudgetExceeded | None = None
        self._charged = ranks.from_first(lambda: charges is not None)
        self._batches, self._content, self._ranks = batches, content, ranks
        self._name = secrets.token_hex(16)

    def before(self, step: int, indices: Indices) -> None:
        self._pay_at_first(step)

    def _pay_at_first(self, step: int) -> None:
        if self._charged or self._batches is not None:
            self._ranks.from_first(lambda: self._pay(step))

    def _pay(self, step: int) -> None:
        if self._batches is not None:
            self._batches.check_free(self._name)
        if self.charges is not None:
            self.charges.recognise(self._content)
            self.charges.before(step)

    def is_paid(self, step: int) -> bool:
        """Return whether the next step is charged to the ledger; a refusal ends a run that has begun."""
        try:
            self._pay_at_first(step)
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
                    f"the run is charged to {_account(before)}, this session to {_account(now)}. Steps "
                    "would go unpaid, or be paid twice. Go on with the charges that the run was started "
                    "with, or start a new run."
                )
            if self.charges is not None:
                self.charges.take_up(generator)
        self._name = state["name"]


def _account(state: object) -> str:
    """Describe the ledger and data set that a run is charged to."""
    if not isinstance(state, dict):
        return "no ledger"
    return ", ".join(f"{name} {value}" for name, value in state.items())
