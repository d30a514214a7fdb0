"""What does a run charge to a ledger? From the [ledger] section of a configuration, or the command line.

And how a charged run scores its test records: once and with noise, if they are records of the data set that
the run is charged to; exactly, if they are others, for the ledger promises them nothing.
"""

from __future__ import annotations

import math

from tacit import accounting
from tacit.datasets import Dataset
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.events import Adjacency, Gaussian
from tacit.ledger import Ledger
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.runs.config import Config, LedgerSection
from tacit.training import StepCharges
from tacit.training.ledger_charges import register
from tacit.training.records import as_records

__all__ = ["check_scores", "check_test_records", "make_charges"]

_LESS_THAN_ALL = 5  # times the noise that a whole budget allows: 1/25 of it, as Gaussians compose
_LARGEST = 50.0  # beyond this epsilon, even less noise makes no difference


def make_charges(section: LedgerSection, plan: Plan, generator: Generator) -> StepCharges | None:
    """What a run of ``plan`` charges to the ledger that ``section`` names; None if it names none.

    Raises:
        InvalidInput: the section is incomplete, or names a ledger or data set that does not exist.
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


def check_scores(config: Config, plan: Plan, charges: StepCharges | None) -> None:
    """Refuse a charged run that would score its held-out records exactly; see :mod:`tacit.training.scoring`.

    Raises:
        InvalidInput: the configuration has noise for a score, and no ledger; or a baseline and no such noise.
        PrivacyRefusal: records of the ledger's data set would be scored exactly.
    """
    if config.privacy.test_baseline is not None and plan.score_report is None:
        raise InvalidInput(
            f"[privacy] test_baseline = {config.privacy.test_baseline:g} is the score of a constant answer, "
            "for a noisy score to be held against. This run has no test_noise: it counts the score of a "
            "constant answer from its test records. Leave test_baseline out."
        )
    if charges is None:
        if plan.score_report is not None:
            raise InvalidInput(
                "[privacy] test_noise is for a run that is charged to a ledger, which makes sure that there "
                "is one score. Name the ledger, or leave test_noise out."
            )
        return
    if config.data.test_fraction is None or plan.score_report is not None:
        return
    another = "or test on records of another data set, from a separate file"
    if plan.adjacency is not Adjacency.ADD_REMOVE:
        raise PrivacyRefusal(
            "[data] test_fraction holds out records of the data set that this run is charged to, so exact "
            "scores of them would be released and not charged; and a noisy score has no guarantee under "
            f'{plan.adjacency}. Plan with adjacency = "add-remove" and [privacy] test_noise, {another}.'
        )
    raise PrivacyRefusal(
        "[data] test_fraction holds out records of the data set that this run is charged to, so exact scores "
        f"of them would be released and not charged. Say [privacy] test_noise = {_advised(plan):g}, for one "
        "score at the end with noise of that many records (standard deviation), for which "
        f"training's noise, or epsilon, grows by about 2 %; {another}."
    )


def _advised(plan: Plan) -> float:
    """Noise for a score at a 25th of what the plan costs, to two digits."""
    whole = accounting.calibrate(
        Gaussian, epsilon=min(plan.epsilon, _LARGEST), delta=plan.delta, adjacency=plan.adjacency
    )
    noise = _LESS_THAN_ALL * whole
    digit = 10.0 ** (math.floor(math.log10(noise)) - 1)
    return math.ceil(noise / digit) * digit


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
