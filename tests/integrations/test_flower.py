"""Flower's server and clients in one process: rounds by its own simulation, and single answers by hand.

``make test-flower`` installs Flower and runs this file.
"""

from __future__ import annotations

import math
import sys
import types
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from made import a_ledger, a_plan
from numpy.typing import NDArray
from pages import blocks_of

pytest.importorskip("flwr")

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.server.superlink.fleet.vce.backend import Backend
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from flwr.supercore.task_identity import TaskIdentity

from tacit.accounting import account
from tacit.errors import BudgetExceeded, InvalidInput, PrivacyRefusal
from tacit.events import Gaussian, PoissonSampled, Repeat
from tacit.integrations.flower import PrivateFedAvg
from tacit.ledger import RenyiBudget
from tacit.plan import Plan
from tacit.report import make_statement
from tacit.testing import seeded_generator
from tacit.training import PrivateAggregation, StepCharges
from tacit.training import aggregation as module

N, ROUNDS, C = 5, 10, 1.0
START: dict[str, NDArray[Any]] = {"w": np.zeros((2, 2), np.float32), "b": np.zeros(2)}
TARGETS = np.random.default_rng(0).normal(1.0, 0.3, (N, 2))


def plan(**changes: Any) -> Plan:
    settings = {
        "records": N,
        "batch_size": 3,
        "steps": ROUNDS,
        "clipping": C,
        "delta": 1e-2,
        "unit": "hospital",
    }
    return a_plan(**{**settings, **changes})


def record(arrays: dict[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def strategy(the_plan: Plan, *, like: Any = START, nodes: int = N, **settings: Any) -> PrivateFedAvg:
    settings = {"generator": seeded_generator(2), **settings}
    return PrivateFedAvg(PrivateAggregation(the_plan, like, **settings), min_available_nodes=nodes)


@pytest.fixture(autouse=True)
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the process in its messages, which Flower's simulation sets by itself."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


# --- by Flower's simulation --------------------------------------------------------------------------------


class Here(Backend):  # type: ignore[misc]
    """Runs the client's app in the thread of Flower's worker; Flower itself has only one that needs Ray."""

    num_workers = 1

    def build(self, app_fn: Callable[[], ClientApp]) -> None:
        self.app = app_fn()

    def is_worker_idle(self) -> bool:
        return True

    def terminate(self) -> None:
        pass

    def process_message(self, message: Message, context: Context) -> tuple[Message, Context]:
        return self.app(message, context), context


hospital = ClientApp()


@hospital.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    """Go half of the way to this hospital's target; one of them always fails."""
    number = context.node_config["partition-id"]
    if number == 4:
        raise ValueError("this hospital cannot answer")
    weights = {name: array.numpy() for name, array in message.content["arrays"].items()}
    weights["b"] = weights["b"] + 0.5 * (TARGETS[number] - weights["b"])
    metrics = MetricRecord({"num-examples": 10 ** (number + 1), "loss": 0.1})
    return Message(RecordDict({"arrays": record(weights), "metrics": metrics}), reply_to=message)


def simulated(run: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a server's program on Flower's grid, with five hospitals."""
    server = ServerApp()
    server.main()(lambda grid, context: run(grid))
    simulate(server, hospital, monkeypatch)


def simulate(server: ServerApp, client: ClientApp, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = types.ModuleType("raybackend")
    vars(ray)["RayBackend"] = Here
    monkeypatch.setitem(sys.modules, "flwr.server.superlink.fleet.vce.backend.raybackend", ray)
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Flower, about itself
        run_simulation(server, client, N, backend_name="threads")


def test_a_federation_of_five_trains_privately(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of one hospital stops nothing; what the run costs is what the accountant says."""
    done: dict[str, Any] = {}
    ledger = a_ledger(dataset="federation", unit="hospital")

    def run(grid: Any) -> None:
        the_plan = plan(noise_multiplier=0.8)
        charges = StepCharges(ledger, "federation", the_plan, generator=seeded_generator(2))
        done["strategy"] = strategy(the_plan, charges=charges)
        done["result"] = done["strategy"].start(grid, record(START), num_rounds=ROUNDS)

    simulated(run, monkeypatch)
    aggregation, result = done["strategy"].aggregation, done["result"]
    event = Repeat(PoissonSampled(3 / 5, Gaussian(0.8)), ROUNDS)
    assert aggregation.steps_done == ROUNDS
    assert aggregation.epsilon == account(event, adjacency="add-remove").epsilon(1e-2)
    assert ledger.status("federation").charges["SETTLED"] == ROUNDS
    assert make_statement(aggregation).data["ledger"]["steps"] == ROUNDS
    final = {name: array.numpy() for name, array in result.arrays.items()}
    assert {name: (a.shape, a.dtype) for name, a in final.items()} == {
        name: (a.shape, a.dtype) for name, a in START.items()
    }
    assert result.train_metrics_clientapp == result.evaluate_metrics_clientapp == {}


def test_the_program_of_the_page_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program: dict[str, Any] = {}
    exec(blocks_of("people-and-sites.md")[4], program)
    client = ClientApp()

    @client.train()  # type: ignore[untyped-decorator]
    def echo(message: Message, context: Context) -> Message:
        return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

    simulate(program["app"], client, monkeypatch)
    epsilon = account(Repeat(PoissonSampled(3 / 5, Gaussian(1.0)), 10), adjacency="add-remove").epsilon(1e-2)
    assert f"epsilon {epsilon:.2f}, weights [array(" in capsys.readouterr().out


def test_without_noise_the_federation_learns_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """All count the same, whatever their numbers of examples; and the number of answers is no divisor."""
    monkeypatch.setattr(module, "gaussian", no_noise)
    done: dict[str, Any] = {}

    def run(grid: Any) -> None:
        done["result"] = strategy(plan(batch_size=None)).start(grid, record(START), num_rounds=2)

    simulated(run, monkeypatch)
    want = np.zeros(2)
    for _ in range(2):
        updates = 0.5 * (TARGETS[:4] - want)
        factors = np.minimum(1.0, C / np.linalg.norm(updates, axis=1))
        want = want + (factors[:, None] * updates).sum(0) / N
    assert done["result"].arrays["b"].numpy() == pytest.approx(want)
    assert not done["result"].arrays["w"].numpy().any()


def no_noise(generator: Any, shape: tuple[int, ...], *, dtype: Any, **address: Any) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


# --- answers by hand ---------------------------------------------------------------------------------------


class ByHand:
    """A grid whose nodes are answered by a function of node and message; None is no answer."""

    def __init__(
        self, answer: Callable[[int, Message], Any], nodes: Iterable[int] = range(100, 100 + N)
    ) -> None:
        self.answer, self.nodes = answer, [*nodes]
        self.asked: list[list[int]] = []

    def get_node_ids(self) -> list[int]:
        return self.nodes[::-1]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        messages = [*messages]
        self.asked.append([message.metadata.dst_node_id for message in messages])
        answers = [self.answer(message.metadata.dst_node_id, message) for message in messages]
        return [answer for answer in answers if answer is not None]


def weights(arrays: dict[str, Any], message: Message, **more: Any) -> Message:
    reply = Message(RecordDict({"arrays": record(arrays), **more}), reply_to=message)
    assert reply.metadata.src_node_id == message.metadata.dst_node_id
    return reply


def moved(node: int, message: Message) -> Message:
    return weights({name: array + 0.01 for name, array in START.items()}, message)


def last(grid: Any, *, rounds: int = 1, the_plan: Plan | None = None, **settings: Any) -> dict[str, Any]:
    made = strategy(plan(batch_size=None) if the_plan is None else the_plan, nodes=1, **settings)
    return {name: array.numpy() for name, array in made.start(grid, record(START), rounds).arrays.items()}


@pytest.mark.parametrize(
    "answer",
    [
        lambda message: None,
        lambda message: Message(Error(0, "broken"), reply_to=message),
        lambda message: weights({"w": START["w"] + 1.0, "b": START["b"] + math.nan}, message),
        lambda message: weights({"w": START["w"] - np.float32(math.inf), "b": START["b"]}, message),
    ],
    ids=["silent", "failed", "NaN", "infinite"],
)
def test_a_client_without_a_usable_answer_adds_nothing(answer: Callable[[Message], Any]) -> None:
    got = last(ByHand(lambda node, message: answer(message) if node == 102 else moved(node, message)))
    want = last(ByHand(lambda node, message: None if node == 102 else moved(node, message)))
    everyone = last(ByHand(moved))
    assert all(np.array_equal(got[name], want[name]) for name in START)
    assert not np.array_equal(got["b"], everyone["b"])


def test_the_nodes_of_a_round_are_those_that_were_drawn() -> None:
    grid = ByHand(moved, nodes=[7, 3, 9])  # the numbers 3 and 4 are of nobody
    last(grid, rounds=ROUNDS, the_plan=plan())
    other = PrivateAggregation(plan(), START, generator=seeded_generator(2))
    for asked in grid.asked[::2]:  # every other time, to evaluate
        assert asked == [[3, 7, 9][number] for number in other.begin() if number < 3]
        other.finish({})
    assert grid.asked[1::2] == [[]] * ROUNDS


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"w": START["w"]}, "has array 'b' as nothing"),
        ({**START, "c": START["b"]}, "has array 'c' as float64"),
        ({"w": START["w"], "b": np.zeros(1)}, r"has array 'b' as float64 of shape \(1,\)"),
        ({"w": START["w"].astype(np.float64), "b": START["b"]}, "has array 'w' as float64"),
    ],
)
def test_weights_of_another_form_are_refused(arrays: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        last(ByHand(lambda node, message: weights(arrays, message)))


def test_an_answer_with_two_records_is_refused() -> None:
    with pytest.raises(InvalidInput, match="sent 2 ArrayRecords"):
        last(ByHand(lambda node, message: weights(START, message, more=record(START))))


def test_an_answer_of_a_node_that_was_not_asked_is_refused() -> None:
    made = strategy(plan(batch_size=None))
    grid = ByHand(moved)
    messages = [*made.configure_train(1, record(START), ConfigRecord(), grid)]
    replies = [moved(0, message) for message in messages]
    vars(replies[0].metadata)["_src_node_id"] = 17
    with pytest.raises(PrivacyRefusal, match="client 'of node 17' was not sampled"):
        made.aggregate_train(1, replies)


def test_more_nodes_than_the_plan_has_clients_are_refused() -> None:
    with pytest.raises(PrivacyRefusal, match="more nodes are connected than the plan's records"):
        last(ByHand(moved, nodes=range(N + 1)))


def test_more_rounds_than_the_plan_has_are_refused_before_the_first() -> None:
    grid = ByHand(moved)
    with pytest.raises(BudgetExceeded, match=f"num_rounds is 11, but the plan has {ROUNDS} rounds left"):
        last(grid, rounds=ROUNDS + 1)
    assert grid.asked == []


def test_the_ledger_ends_a_run_whose_model_stays_as_it_was() -> None:
    ledger = a_ledger(dataset="sites", unit="hospital", budget=RenyiBudget(epsilon=8.0, delta=1e-2))
    the_plan = plan(noise_multiplier=2.0, batch_size=None)
    rival = plan(noise_multiplier=2.0, batch_size=None, steps=1)
    made = strategy(the_plan, charges=StepCharges(ledger, "sites", the_plan, chunk=2), generator=None)

    def answer(node: int, message: Message) -> Message:
        if made.aggregation.steps_done == 3:
            while ledger.price("sites", rival.event).fits:
                StepCharges(ledger, "sites", rival).before(0)
        return moved(node, message)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"b": float(arrays["b"].numpy()[0])})

    result = made.start(ByHand(answer), record(START), ROUNDS, evaluate_fn=evaluate)
    values = [metrics["b"] for metrics in result.evaluate_metrics_serverapp.values()]
    assert made.aggregation.steps_done == 4
    assert len(set(values)) == 5
    assert values[4:] == [values[4]] * (ROUNDS - 3)
    assert made.aggregation.stopped is not None
    with pytest.raises(BudgetExceeded):
        strategy(rival, charges=StepCharges(ledger, "sites", rival), generator=None).start(
            ByHand(moved), record(START), 1
        )


def test_a_plan_that_needs_lasting_numbers_is_refused() -> None:
    with pytest.raises(PrivacyRefusal, match="a fixed list of clients"):
        strategy(plan(sampling="epochs", batch_size=1))
