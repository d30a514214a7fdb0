"""Private training, one step at a time.

Use :class:`PrivateSession` in a loop of your own, or the ready loop :func:`train`.  Records may be people
with several rows each (:class:`UserRecords`), or arrive over time (:class:`DatedRecords`).  A run can be
charged to a ledger (:class:`StepCharges`), audited (:class:`AuditSlots`) and distributed over processes
(:class:`ProcessRanks`).  :class:`PrivateAggregation` averages the updates of federated clients.
:func:`evaluate` scores a model exactly, and :func:`score_held_out` adds noise to the score.

Module ``session`` has the public interface, ``run`` the order of the parts, and ``step`` one private step.
"""

from tacit.training.aggregation import PrivateAggregation
from tacit.training.audit_slots import AuditSlots
from tacit.training.by_record import Augmentation, FlipAndCrop
from tacit.training.charges import StepCharges
from tacit.training.evaluation import Evaluation, evaluate
from tacit.training.groups import by_group
from tacit.training.least_squares import least_squares_session, solve_least_squares
from tacit.training.loop import Watcher, train
from tacit.training.ranks import Alone, ProcessRanks
from tacit.training.scoring import score_held_out, select_candidate
from tacit.training.session import PrivateSession
from tacit.training.step import StepTicket
from tacit.training.users import DatedRecords, UserRecords

__all__ = [
    "Alone",
    "AuditSlots",
    "Augmentation",
    "DatedRecords",
    "Evaluation",
    "FlipAndCrop",
    "PrivateAggregation",
    "PrivateSession",
    "ProcessRanks",
    "StepCharges",
    "StepTicket",
    "UserRecords",
    "Watcher",
    "by_group",
    "evaluate",
    "least_squares_session",
    "score_held_out",
    "select_candidate",
    "solve_least_squares",
    "train",
]
