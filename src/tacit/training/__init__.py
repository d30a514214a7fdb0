"""How does a model train privately? By a session, which takes one private step at a time.

:class:`PrivateSession` is for a loop of one's own, and :func:`train` is a ready one.  Records may be
:class:`UserRecords`, people with several rows each, or :class:`DatedRecords`, which arrive in time.  A
run may be charged to a ledger (:class:`StepCharges`), audited (:class:`AuditSlots`) and shared by several
processes (:class:`ProcessRanks`).  :func:`evaluate` says how well a model does, :func:`score_held_out` the
same with noise.

Inside, ``session`` is what users see, ``run`` what a session is made of and ``step`` one private step.
``parts`` has what is woven into the steps, ``data`` what becomes a batch, ``ranks`` several processes and
sharded models, ``resume`` the state of a run.
"""

from typing import TYPE_CHECKING

from tacit.moved import moved as _moved
from tacit.training.augmentation import Augmentation, FlipAndCrop
from tacit.training.data.dated import DatedRecords
from tacit.training.data.users import UserRecords
from tacit.training.evaluation import Evaluation, evaluate
from tacit.training.least_squares import least_squares_session, solve_least_squares
from tacit.training.loop import Watcher, train
from tacit.training.parts.audit_slots import AuditSlots
from tacit.training.parts.ledger_charges import StepCharges
from tacit.training.ranks.processes import Alone, ProcessRanks
from tacit.training.scoring import score_held_out
from tacit.training.selection import select_candidate
from tacit.training.session import PrivateSession
from tacit.training.step import StepTicket

__all__ = [
    "Alone",
    "AuditSlots",
    "Augmentation",
    "DatedRecords",
    "Evaluation",
    "FlipAndCrop",
    "PrivateSession",
    "ProcessRanks",
    "StepCharges",
    "StepTicket",
    "UserRecords",
    "Watcher",
    "evaluate",
    "least_squares_session",
    "score_held_out",
    "select_candidate",
    "solve_least_squares",
    "train",
]

if not TYPE_CHECKING:  # else every name would be one of the module
    __getattr__ = _moved(
        __name__,
        {
            "AveragedWeights": "tacit.training.parts.released.AveragedWeights",
            "Batch": "tacit.training.StepTicket",
            "History": "tacit.training.loop.History",
            "OwnedRecords": "tacit.training.UserRecords",
            "Ranks": "tacit.training.ranks.processes.Ranks",
            "Row": "tacit.training.loop.MetricsRow",
            "Selected": "tacit.training.selection.SelectedCandidate",
            "SlotEvidence": "tacit.training.parts.audit_slots.SlotEvidence",
            "StepReport": "tacit.training.step.StepReport",
            "select": "tacit.training.select_candidate",
        },
    )
