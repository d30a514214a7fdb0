"""What does a run charge to a ledger? From the [ledger] section of a configuration, or the command line.

And how a charged run scores its test records: once and with noise, if they are records of the data set that
the run is charged to; exactly, if they are others, for the ledger promises them nothing.
"""

from __future__ import annotations

from tacit.datasets import Dataset
from tacit.errors import PrivacyRefusal
from tacit.ledger import Ledger
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.runs.checks import check_ledger
from tacit.runs.config import LedgerSection
from tacit.training import StepCharges
from tacit.training.data.records import as_records
from tacit.training.parts.ledger_charges import register
from tacit.training.ranks.processes import Ranks


def make_charges(
    section: LedgerSection,
    plan: Plan,
    generator: Generator,
    ranks: Ranks | None = None,
    *,
    owned_by: str | None = None,
) -> StepCharges | None:
    """What a run of ``plan`` charges to the ledger that ``section`` names; None if it names none.

    Of several ``ranks`` the first calls this.  ``owned_by``: the column of people with several rows each.

    Raises:
        InvalidInput: the section is incomplete, or names a ledger or data set that does not exist.
        PrivacyRefusal: plan and data set promise different things.
    """
    check_ledger(section)
    if section.url is None or section.dataset is None:
        return None
    return StepCharges(
        Ledger.open(section.url),
        section.dataset,
        plan,
        chunk=section.chunk,
        block=section.block,
        one_record_per_unit=section.one_record_per_unit,
        owned_by=owned_by,
        by=section.by,
        ranks=ranks,
        generator=generator,
    )


def check_test_records(data: Dataset, plan: Plan, charges: StepCharges) -> None:
    """Let the ledger record test records that are scored with noise; refuse exact scores of records it knows.

    Raises:
        PrivacyRefusal: the ledger knows the test records as another data set; or they are to be scored
            exactly and are the training records, or the ledger knows them.
    """
    ledger = charges.ledger
    content = as_records(data.test).content
    if plan.score_report is not None:
        register(ledger, charges.dataset, content(), block=charges.block)
        return
    found, trained_on = content(), as_records(data.train).content()
    if found is None or trained_on is None:
        return
    fingerprint = ledger.fingerprint(found)
    known = [
        status.name
        for status in ledger.datasets()
        for entry in ledger.history(status.name)
        if entry.kind == "content" and entry.body["fingerprint"] == fingerprint
    ]
    if fingerprint == ledger.fingerprint(trained_on):
        known = [charges.dataset]
    if known:
        raise PrivacyRefusal(
            f"the ledger knows the test records as records of the data set {known[0]!r}: "
            "exact scores of them would be released and not charged. Say [privacy] test_noise for one noisy "
            "score as a part of the budget, or test on other records."
        )
