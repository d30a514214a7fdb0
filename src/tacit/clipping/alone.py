"""Outputs of a model for records that are shown one by one, so that none depends on another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.func import vmap

from tacit.clipping.isolation.functions import isolated
from tacit.clipping.isolation.made_up import BY_CALLS
from tacit.clipping.isolation.randomness import begin_at, devices_of, only_torch_draws
from tacit.clipping.isolation.reasons import FAILURES, unsupported
from tacit.clipping.isolation.state import refuse_wrapped, same
from tacit.clipping.isolation.under_vmap import Pass
from tacit.clipping.memory import FAST
from tacit.clipping.per_example.registry import RULES
from tacit.clipping.per_example.use import Kept
from tacit.errors import TacitError, UnsupportedModel, of_device


def outputs_alone(
    model: nn.Module, output_of: Callable[[Tensor], Tensor], rows: Iterable[Tensor]
) -> Iterator[Tensor]:
    """Yield ``output_of(row)`` (1, ...) for rows (1, ...), each with the same random numbers.

    Each record has a pass of its own under vmap, in which no value of a record reaches Python. So a model
    can keep nothing of one record that another would meet.

    Raises:
        UnsupportedModel: vmap cannot run the model, it reads a value or a tensor of another record, or it
            gives another output for the same record in its next call.
    """
    devices = devices_of(model.parameters())

    def output(row: Tensor) -> Tensor:
        begin_at(0, devices)
        return _under_vmap(model, output_of, row)

    checked = False
    with torch.random.fork_rng(devices=devices), only_torch_draws():
        for row in rows:
            if not checked:
                zeros = [output(torch.zeros_like(row)) for _ in "12"]
                if not same(*zeros):
                    raise UnsupportedModel(BY_CALLS)
                checked = True

            yield output(row)


def _under_vmap(model: nn.Module, output_of: Callable[[Tensor], Tensor], row: Tensor) -> Tensor:
    run = Pass(model.parameters(), 1, 1, RULES, Kept, FAST)

    def one(record: Tensor) -> Tensor:
        run.begin((record,))
        with run:
            output = output_of(record)
        run.returns(output)
        return output

    try:
        with torch.enable_grad(), isolated(run):
            outputs: Tensor = vmap(one, randomness="different")(row[None])
        refuse_wrapped(model)
        return outputs[0].detach()
    except TacitError:
        raise
    except FAILURES as reason:
        if of_device(reason):
            raise
        raise unsupported(reason) from None
    finally:
        run.clear()
