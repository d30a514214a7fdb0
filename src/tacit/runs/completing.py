"""Completions of prompts by a causal language model of transformers.

Letters: n prompts of a batch, V tokens in the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from tacit.errors import needed
from tacit.training.evaluation import evaluation_mode

transformers = needed("transformers", "transformers", "generating text")


@final
class _Drawn:
    """A change of the logits, after which the largest one is a sample of their softmax (Gumbel's trick).

    Each row has its own generator, so that a text does not depend on those sampled together with it.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self._generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def __call__(self, _input_ids: Tensor, scores: Tensor) -> Tensor:
        noise = torch.empty_like(scores)
        for row, generator in zip(noise, self._generators, strict=True):
            row.exponential_(generator=generator)
        return scores - noise.log()


def complete(
    network: Any,
    prompts: Sequence[Sequence[int]],
    *,
    stop: Sequence[int],
    padding: int,
    longest: int,
    seeds: Sequence[int] = (),
    temperature: float = 1.0,
    top_p: float = 1.0,
) -> list[list[int]]:
    """Return the tokens that the model writes after each of n prompts, at most ``longest``.

    A text ends before the first token of ``stop``. Without ``seeds``, each token is the most likely one;
    otherwise it is sampled with the seed of its text.
    """
    device = next(network.parameters()).device
    width = max(map(len, prompts))
    tokens = torch.full((len(prompts), width), padding)
    mask = torch.zeros_like(tokens)
    for row, prompt in enumerate(prompts):
        tokens[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1

    changes = transformers.LogitsProcessorList()
    if seeds:
        changes.append(transformers.TemperatureLogitsWarper(temperature))
        changes.append(transformers.TopPLogitsWarper(top_p))
        changes.append(_Drawn(seeds, device))
    own = transformers.GenerationConfig(
        do_sample=False,
        max_new_tokens=longest,
        eos_token_id=list(stop) or None,
        pad_token_id=padding,
        use_cache=True,
    )
    # The model's own settings, such as a penalty for repetition, would fill in what `own` leaves open.
    before, network.generation_config = network.generation_config, transformers.GenerationConfig()
    try:
        with torch.no_grad(), evaluation_mode(network):
            written = network.generate(
                tokens.to(device),
                attention_mask=mask.to(device),
                logits_processor=changes,
                generation_config=own,
            )
    finally:
        network.generation_config = before
    return [_up_to(row, stop) for row in written[:, width:].tolist()]


def stops_of(network: Any, end: int | None) -> list[int]:
    """Return the tokens that end a text: the tokenizer's, and those that the model's own settings name."""
    own = network.generation_config.eos_token_id
    named = own if isinstance(own, list) else [own]
    return [token for token in {end, *named} if token is not None]


def _up_to(tokens: list[int], stop: Sequence[int]) -> list[int]:
    end = next((place for place, token in enumerate(tokens) if token in stop), len(tokens))
    return tokens[:end]
