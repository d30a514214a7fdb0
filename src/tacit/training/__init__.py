"""Private training: the step, the session around it, the loop, evaluation and resume."""

from tacit.training.augmentation import Augmentation, FlipAndCrop
from tacit.training.averaging import AveragedWeights
from tacit.training.charges import StepCharges
from tacit.training.evaluation import Evaluation, evaluate
from tacit.training.loop import History, Row, Watcher, train
from tacit.training.scoring import score_held_out
from tacit.training.selection import Selected, select
from tacit.training.session import Batch, PrivateSession, StepReport
from tacit.training.slots import AuditSlots, SlotEvidence

__all__ = [
    "AuditSlots",
    "Augmentation",
    "AveragedWeights",
    "Batch",
    "Evaluation",
    "FlipAndCrop",
    "History",
    "PrivateSession",
    "Row",
    "Selected",
    "SlotEvidence",
    "StepCharges",
    "StepReport",
    "Watcher",
    "evaluate",
    "score_held_out",
    "select",
    "train",
]
