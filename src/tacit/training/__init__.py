"""How does a model train privately? The step, the session around it, the loop, evaluation and resume.

* ``session``: the private session, for the user's own loop.
* ``step``: one private step.
* ``loop``: the loop over a session.
* ``arguments``: whether the arguments of a session are of the right kind.
* ``records``: batches from arrays, data frames, memory maps and data sets; ``columns``, ``frames``,
  ``arrays``: what becomes a tensor; ``structure``: what a record is made of; ``batching``: items of one
  batch; ``prefetch``: worker processes read batches early.
* ``owners``: records that are people with several rows each; ``dated``: records that arrive in time.
* ``items``: checks that each item of a data set depends on its own record alone.
* ``augmentation``: several views of a record before the one clip.
* ``guarded_optimizer``: only noisy gradients change the model.
* ``diverging``: says when weights are NaN, or the noisy loss stays at its bound.
* ``noise_reuse``: refuses to add the same noise to two different sums.
* ``averaging``: an average of the weights, as post-processing.
* ``identity``, ``digests``: which loss, model and augmentation a resume state belongs to.
* ``checkpointing``: the resume state of a run; ``files``: files written whole or not at all.
* ``progress``: a bar over the steps.
* ``correlated``: noise that is correlated in time; ``combined``: sums of long rows for it.
* ``ranks``: several processes take each step together; ``processes``: refuses them without it.
* ``layout``: the buffers of a step, and where parameters lie; ``shards``: models that ``fully_shard``
  sharded; ``shard_checks`` refuses others, and ``shard_files`` has their weights on disk.
* ``evaluation``: how well a model does; ``scoring``: one noisy score on held-out records of the data set.
* ``ledger_charges``: what a run charges to a ledger; ``policy_check``: whether the policy allows it.
* ``audit_slots``: canary records to audit a run by.
* ``least_squares``: a linear model from one release of noisy moments.
* ``selection``: the private choice of hyper-parameters.
* ``values``: raises errors of torch without the numbers of a record.
"""

from tacit.training.augmentation import Augmentation, FlipAndCrop
from tacit.training.data.dated import DatedRecords
from tacit.training.data.users import OwnedRecords
from tacit.training.evaluation import Evaluation, evaluate
from tacit.training.least_squares import least_squares_session, solve_least_squares
from tacit.training.loop import History, Row, Watcher, train
from tacit.training.parts.audit_slots import AuditSlots, SlotEvidence
from tacit.training.parts.averaging import AveragedWeights
from tacit.training.parts.ledger_charges import StepCharges
from tacit.training.ranks.processes import Alone, ProcessRanks, Ranks
from tacit.training.scoring import score_held_out
from tacit.training.selection import Selected, select
from tacit.training.session import PrivateSession, StepReport, StepTicket

__all__ = [
    "Alone",
    "AuditSlots",
    "Augmentation",
    "AveragedWeights",
    "Batch",
    "DatedRecords",
    "Evaluation",
    "FlipAndCrop",
    "History",
    "OwnedRecords",
    "PrivateSession",
    "ProcessRanks",
    "Ranks",
    "Row",
    "Selected",
    "SlotEvidence",
    "StepCharges",
    "StepReport",
    "StepTicket",
    "Watcher",
    "evaluate",
    "least_squares_session",
    "score_held_out",
    "select",
    "solve_least_squares",
    "train",
]

Batch = StepTicket  # the old name, for loops that import it
