"""Private training: the step, the session around it, the loop, evaluation and resume.

* ``session``: the private session, for a loop of one's own.
* ``step``: one private step.
* ``loop``: the loop over a session.
* ``records``: batches from arrays, maps and data sets; ``prefetch``: read ahead of the step.
* ``items``: whether the items of a data set are made of their own records.
* ``augmentation``: several views of a record before the one clip.
* ``guarded_optimizer``: only noisy gradients move the model.
* ``noise_reuse``: the same noise never lies on two different sums.
* ``averaging``: an average of the weights, as post-processing.
* ``identity``, ``digests``: which loss, model and augmentation a resume state belongs to.
* ``checkpointing``: the resume state of a run; ``files``: files written whole or not at all.
* ``processes``: one run, one process.
* ``evaluation``: how well a model does; ``scoring``: one noisy score on the data set's own records.
* ``ledger_charges``: what a run charges to a ledger; ``policy_check``: whether it may.
* ``audit_slots``: canary records to audit a run by.
* ``selection``: the private choice of hyper-parameters.
* ``values``: errors without a record's numbers.
"""

from tacit.training.audit_slots import AuditSlots, SlotEvidence
from tacit.training.augmentation import Augmentation, FlipAndCrop
from tacit.training.averaging import AveragedWeights
from tacit.training.evaluation import Evaluation, evaluate
from tacit.training.ledger_charges import StepCharges
from tacit.training.loop import History, Row, Watcher, train
from tacit.training.scoring import score_held_out
from tacit.training.selection import Selected, select
from tacit.training.session import Batch, PrivateSession, StepReport

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
