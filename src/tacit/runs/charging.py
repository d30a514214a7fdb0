"""From the [ledger] section of a configuration, or from the command line, to the charges of a run."""

from __future__ import annotations

from tacit.errors import InvalidInput
from tacit.ledger import Ledger
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.runs.config import LedgerSection
from tacit.training import StepCharges

__all__ = ["make_charges"]


def make_charges(section: LedgerSection, plan: Plan, generator: Generator) -> StepCharges | None:
    """What a run of ``plan`` charges to the ledger that ``section`` names; None if it names none.

    Raises:
        InvalidInput: the section names half of what it takes, or a ledger or data set that is not there.
        PrivacyRefusal: plan and data set promise different things.
    """
    if section.url is None:
        given = [name for name, value in section if value not in (None, False, "")]
        if given:
            raise InvalidInput(
                f"[ledger] {', '.join(given)} is given without url, so nothing would be charged. Name the "
                'ledger: url = "budget.db", or --ledger budget.db.'
            )
        return None
    if section.dataset is None:
        raise InvalidInput(
            "[ledger] dataset is missing: the name under which the ledger keeps the budget of these records "
            "(--dataset on the command line). `tacit ledger datasets` lists the names."
        )
    return StepCharges(
        Ledger.open(section.url),
        section.dataset,
        plan,
        chunk=section.chunk,
        block=section.block,
        one_record_per_unit=section.one_record_per_unit,
        by=section.by,
        generator=generator,
    )
