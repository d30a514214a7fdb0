"""Outputs of a model for records that are shown one by one, so that none depends on another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.func import vmap

from tacit.clipping.isolation.draws import whole_batch
from tacit.clipping.isolation.functions import functions_carried
from tacit.clipping.isolation.randomness import begin_at, devices_of, only_torch_draws
from tacit.clipping.isolation.reasons import KeptTensor, NotCarried
from tacit.clipping.isolation.state import READS_KEPT, Memory, naming_kept
from tacit.clipping.isolation.under_vmap import Pass
from tacit.clipping.memory import FAST
from tacit.clipping.per_example.registry import RULES
from tacit.clipping.per_example.use import Kept
from tacit.errors import TacitError, UnsupportedModel, of_device


def outputs_alone(
    model: nn.Module, output_of: Callable[[Tensor], Tensor], rows: Iterable[Tensor]
) -> Iterator[Tensor]:
    """Yield ``output_of(row)`` (1, ...) for rows (1, ...), each from the same state of ``model``.

    Each record has a pass of its own under vmap, in which Python sees no tensor of another record. Before
    each pass, model and generators get the state that they have now, and after the last one the model does.
    A record that vmap cannot carry runs in a plain pass.

    Raises:
        UnsupportedModel: the model reads a tensor that it kept from another record.
    """
    devices = devices_of(model.parameters())
    memory = Memory(model, output_of, code=True)
    with torch.random.fork_rng(devices=devices), only_torch_draws(), naming_kept():
        for row in rows:
            begin_at(0, devices)
            try:
                output = _under_vmap(model, output_of, row, devices)
            except KeptTensor:
                raise UnsupportedModel(READS_KEPT) from None
            except TacitError:
                raise
            except (
                NotCarried,
                RuntimeError,
                NotImplementedError,
                TypeError,
                ValueError,
                LookupError,
            ) as reason:
                if of_device(reason):
                    raise
                memory.restore()
                begin_at(0, devices)
                with torch.no_grad():
                    output = output_of(row)
            finally:
                memory.restore()
            yield output


def _under_vmap(
    model: nn.Module, output_of: Callable[[Tensor], Tensor], row: Tensor, devices: list[int]
) -> Tensor:
    group = whole_batch(1, devices, exact=True)
    group.begin()
    run = Pass(model.parameters(), 1, 1, RULES, Kept, FAST, group=group)

    def one(record: Tensor) -> Tensor:
        run.begin((record,))
        with run:
            output = output_of(record)
        run.returns(output)
        return output

    try:
        with torch.enable_grad(), functions_carried(run):
            outputs: Tensor = vmap(one, randomness="different")(row[None])
        return outputs[0].detach()
    finally:
        run.clear()
