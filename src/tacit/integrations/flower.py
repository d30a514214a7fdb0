"""A private FedAvg for Flower: the server releases only noisy means of the clients' updates."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.errors import BudgetExceeded, InvalidInput, MissingExtra, PrivacyRefusal, check_integer
from tacit.rounding import round_up
from tacit.sampling import FullBatch, PoissonSampling, TruncatedPoissonSampling
from tacit.training import PrivateAggregation

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Result, Strategy
except ImportError:
    raise MissingExtra("flwr", "flower", "PrivateFedAvg") from None

__all__ = ["PrivateFedAvg"]

Weights: TypeAlias = dict[str, NDArray[np.floating]]
_LOG = logging.getLogger("flwr")


class PrivateFedAvg(Strategy):  # type: ignore[misc]  # Flower is not read by mypy
    """A Flower strategy that adds the noisy mean of a :class:`PrivateAggregation` to the model in each round.

    As with ``FedAvg``, a client replies with one ``ArrayRecord`` of its trained weights.  The client's update
    is the difference between these and the weights that it received.  All updates count equally; the strategy
    ignores ``num-examples``.

    **Guarantee**

    * The server releases the noisy means of the aggregation, and nothing else that clients send.  It drops
      the clients' metrics, which have no noise, and asks no client to evaluate.
    * In each round, the aggregation counts a connected node as one client: its number is the node's rank by
      node id.

    Args:
        aggregation: the :class:`PrivateAggregation` with the plan, charges and state of the rounds.  Its
            arrays must have the names of the model's arrays.
        min_available_nodes: the number of connected nodes that a round waits for, as with ``FedAvg``.
    """

    def __init__(self, aggregation: PrivateAggregation[Weights], *, min_available_nodes: int = 1) -> None:
        sampling = aggregation.plan.sampling
        if not isinstance(sampling, PoissonSampling | TruncatedPoissonSampling | FullBatch):
            raise PrivacyRefusal(
                f"the plan has {sampling.describe()}, which needs a fixed list of clients, but Flower's "
                "nodes change. Remove sampling: the plan then uses Poisson sampling, or all clients."
            )
        self.aggregation = aggregation
        self._least = check_integer("min_available_nodes", min_available_nodes, low=1)
        self._round: tuple[Weights, dict[int, int]] | None = None  # what was sent, and each node's number

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run ``num_rounds`` rounds, as ``Strategy.start`` does.

        Raises:
            BudgetExceeded: if the plan has fewer than ``num_rounds`` rounds left, or the ledger refuses the
                first round.  If the ledger refuses a later round, nothing is raised, but the model no longer
                changes; ``aggregation.stopped`` says why.
        """
        left = self.aggregation.plan.steps - self.aggregation.steps_done
        if num_rounds > left:
            raise BudgetExceeded(
                f"num_rounds is {num_rounds}, but the plan has {left} rounds left. Lower num_rounds, or plan "
                "more steps before the first round."
            )
        settings = (timeout, train_config, evaluate_config, evaluate_fn)
        return super().start(grid, initial_arrays, num_rounds, *settings)

    def summary(self) -> None:
        """Log the privacy cost and the rounds of the plan."""
        plan = self.aggregation.plan
        cost = f"epsilon {round_up(plan.epsilon)} at delta {plan.delta:g} for one {plan.unit}"
        _LOG.info("\t└──> Private: %s, in %s rounds; %s", cost, plan.steps, plan.sampling.describe())

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Pay for a round, sample clients for it, and message the sampled clients that are connected."""
        while len(nodes := sorted(grid.get_node_ids())) < self._least:
            time.sleep(1)
        if len(nodes) > self.aggregation.plan.records:
            raise PrivacyRefusal(
                "more nodes are connected than the plan's records, its public number of clients. Make the "
                "plan with more records."
            )
        try:
            drawn = self.aggregation.begin()
        except BudgetExceeded as refusal:
            if self.aggregation.steps_done == 0:
                raise
            _LOG.warning("The ledger has ended the run: %s", refusal)
            return []
        numbers = {nodes[number]: number for number in drawn if number < len(nodes)}
        self._round = {name: array.numpy() for name, array in arrays.items()}, numbers
        config["server-round"] = server_round
        record = RecordDict({"arrays": arrays, "config": config})
        return [Message(record, node, MessageType.TRAIN) for node in numbers]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add the noisy mean of the updates to the weights.  A failed client adds nothing."""
        if self._round is None:
            return None, None
        (sent, numbers), updates = self._round, {}
        for reply in replies:
            if reply.has_error():
                continue
            node, records = reply.metadata.src_node_id, [*reply.content.array_records.values()]
            if len(records) != 1:
                raise InvalidInput(f"node {node} sent {len(records)} ArrayRecords. Send the weights in one.")
            updates[numbers.get(node, f"of node {node}")] = _difference(records[0], sent)
        mean = self.aggregation.finish(updates)  # type: ignore[arg-type]  # which refuses other numbers
        self._round = None
        _LOG.info("round %s: epsilon %s so far", server_round, round_up(self.aggregation.epsilon))
        return ArrayRecord({name: Array(sent[name] + mean[name]) for name in sent}), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask no client to evaluate, because an exact score on a client's data is not private."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return None, as no client evaluates."""


def _difference(record: ArrayRecord, sent: Weights) -> Weights:
    """Return a client's update; the aggregation refuses arrays of other names or shapes, which stay."""
    update = {name: array.numpy() for name, array in record.items()}
    for name in sent.keys() & update.keys():
        if update[name].shape == sent[name].shape:
            with np.errstate(all="ignore"):  # a warning would tell that a client has such numbers
                update[name] = update[name] - sent[name]
    return update
