"""The page on public models: its loops run, and its table names every setting that is refused."""

from __future__ import annotations

import re

import pytest
import torch
from accelerate import Accelerator
from made import a_plan
from pages import blocks_of, comments_of, printed, text_of
from torch import nn

from tacit import PrivateSession
from tacit.errors import InvalidInput
from tacit.integrations.transformers import _BREAKS, _DISAGREES
from tacit.losses import regression

PAGE = text_of("public-models.md")
BLOCKS = blocks_of("public-models.md")


@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")  # Lightning's own use of torch
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # of peft
@pytest.mark.filterwarnings("ignore:The 'val_dataloader' does not have many workers")
def test_the_programs_print_what_they_say() -> None:
    for code, output in zip(BLOCKS, printed(BLOCKS), strict=True):
        lines = [line for line in output.splitlines() if line and not line.startswith("{")]
        assert lines == comments_of(code)  # lines of braces are the Trainer's log
    assert [len(comments_of(code)) for code in BLOCKS] == [4, 1, 2, 2, 1]


def test_the_table_has_every_setting_that_is_refused() -> None:
    named = set(re.findall(r"`(\w+)`", "".join(line for line in PAGE.splitlines() if line.startswith("| `"))))
    evaluations = {"fp16_full_eval", "bf16_full_eval"}  # there as *_full_eval
    small = {"ignore_data_skip", "enable_jit_checkpoint", "torch_empty_cache_steps"}
    assert (_BREAKS | _DISAGREES).keys() - evaluations - small <= named


def test_the_wrapper_of_accelerate_is_refused_as_the_page_says() -> None:
    model = nn.Linear(2, 1)
    wrapped = Accelerator(cpu=True).prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    plan = a_plan(records=4, batch_size=None, steps=1, clipping=1.0, adjacency="zero-out")
    with pytest.raises(
        InvalidInput, match=r"AcceleratedOptimizer .* Pass the wrapped optimizer: optimizer.opt"
    ):
        PrivateSession(model, wrapped, (torch.ones(4, 2), torch.ones(4, 1)), plan, loss=regression())
