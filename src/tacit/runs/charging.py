"""From the [ledger] section of a configuration, or from the command line, to the charges of a run.

And what a charged run may say of its test records: those that are records of the data set whose budget it is
are scored once and with noise; others exactly, for the ledger promises them nothing.
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

_LESS_THAN_ALL = 5  # times the noise that a whole budget buys: 1/25 of it, as Gaussians compose
_LARGEST = 50.0  # beyond this epsilon, how much less noise it buys makes no difference


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


def check_scores(config: Config, plan: Plan, charges: StepCharges | None) -> None:
    """A charged run pays for the score of records that it holds out; see :mod:`tacit.training.scoring`.

    Raises:
        InvalidInput: there is noise for a score, and no ledger.
        PrivacyRefusal: records of the ledger's data set would be scored exactly.
    """
    if charges is None:
        if plan.score_report is not None:
            raise InvalidInput(
                "[privacy] test_noise is for a run that is charged to a ledger, which sees to it that there "
                "is one score. Name the ledger, or take test_noise out."
            )
        return
    if config.data.test_fraction is None or plan.score_report is not None:
        return
    another = "or test on records of another data set, from a file of their own"
    if plan.adjacency is not Adjacency.ADD_REMOVE:
        raise PrivacyRefusal(
            "[data] test_fraction holds out records of the data set whose budget this is, so that exact "
            "scores of them would be released and not charged; and a noisy score has no guarantee under "
            f'{plan.adjacency}. Plan with adjacency = "add-remove" and [privacy] test_noise, {another}.'
        )
    raise PrivacyRefusal(
        "[data] test_fraction holds out records of the data set whose budget this is, so that exact scores "
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
    """Have the ledger know what is scored with noise; what is scored exactly it must not know already.

    Raises:
        PrivacyRefusal: the test records are known of another data set, or they are to be scored exactly and
            are the training records or known of any.
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
            f"the test records are records of the data set {known[0]!r}, by what the ledger knows of it: "
            "exact scores of them would be released and not charged. Say [privacy] test_noise for one noisy "
            "score as a part of the budget, or test on other records."
        )
