"""Preferences with and without privacy: ``python -m experiments.preferences``.

A small Llama learns the answers of a shop without privacy: they name one of four desks at random, and half of
them begin with thanks.  Then it learns by DPO, with LoRA on all linear maps, from pairs with a public rule:

* ``thanks``: the chosen answer begins with thanks, and the rejected one is the same without them;
* ``desk``: the chosen answer names the desk of the thing in question, and the rejected one another desk.

Each rule is tried with several betas and learning rates, at epsilon 8 and without noise or clipping, with
three seeds.  Every try is stored in ``experiments/searches/preferences.jsonl``, so that a search can be
interrupted and resumed.  ``--quick`` tests the command.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import sys
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.base import DELTA
from experiments.text_optimizers import FOLDER, train, with_lora
from experiments.tries import Tries
from tacit.losses import logits_of, preference
from tacit.plan import Plan
from tacit.training import PrivateSession
from tacit.training.evaluation import answer_probabilities

THINGS = {
    "bike": "north", "lamp": "south", "chair": "east", "phone": "west", "radio": "north", "camera": "south",
}  # fmt: skip
DESKS = ("north", "south", "east", "west")
VERBS = ("return", "repair", "collect")
WORDS = (
    "<end>", "?", ".", "where", "can", "i", "my", "number", "your", "is", "waiting", "at", "the", "desk",
    "thank", "you",
)  # fmt: skip
VOCABULARY = [*WORDS, *VERBS, *THINGS, *DESKS, *"0123456789"]
NUMBER = {word: number for number, word in enumerate(VOCABULARY)}
LENGTH = 28
PUBLIC, PAIRS, TESTED = 4_000, 3_200, 400
BATCH, STEPS = 128, 30
RULES, BETAS, RATES = ("thanks", "desk"), (0.1, 0.3), (0.0005, 0.002)
FIGURES = (
    "preferred before", "preferred", "accuracy", "perplexity before", "perplexity", "well-formed before",
    "well-formed", "follows before", "follows",
)  # fmt: skip
"""The scores of a trial.

``preferred`` is the share of test pairs whose chosen answer is the more probable, ``accuracy`` that of those
whose chosen answer has gained more, ``perplexity`` that of a token of chosen answers.  Of sampled answers,
``well-formed`` is the share that the shop could have written, and ``follows`` that which follows the rule.
"""


@dataclass(frozen=True)
class Trial:
    """One setting of the search; without ``epsilon`` there is neither noise nor clipping."""

    rule: str
    beta: float
    epsilon: float | None
    learning_rate: float
    seed: int


@dataclass(frozen=True)
class Answer:
    """An answer of the shop about a thing."""

    thing: str
    desk: str
    thanks: bool

    def __str__(self) -> str:
        begin = "thank you . " if self.thanks else ""
        return f"{begin}your {self.thing} is waiting at the {self.desk} desk . <end>"


def question(dice: random.Random) -> tuple[str, str]:
    """Return a question, and the thing that it asks for."""
    thing = dice.choice(list(THINGS))
    number = " ".join(f"{dice.randrange(1000):03}")
    return f"where can i {dice.choice(VERBS)} my {thing} number {number} ?", thing


def pair(rule: str, dice: random.Random) -> tuple[str, Answer, Answer]:
    """Return a question with its chosen and its rejected answer."""
    asked, thing = question(dice)
    if rule == "thanks":
        desk = dice.choice(DESKS)
        return asked, Answer(thing, desk, True), Answer(thing, desk, False)
    thanks, right = dice.random() < 0.5, THINGS[thing]
    wrong = dice.choice([desk for desk in DESKS if desk != right])
    return asked, Answer(thing, right, thanks), Answer(thing, wrong, thanks)


def tokens_of(asked: str, answer: object) -> tuple[Tensor, Tensor]:
    """Return the tokens (LENGTH,) of a question with an answer, and 1 where a token is of the answer."""
    prompt, rest = ([NUMBER[word] for word in str(text).split()] for text in (asked, answer))
    tokens, mask = torch.zeros(2, LENGTH, dtype=torch.int64)
    tokens[: len(prompt) + len(rest)] = torch.tensor(prompt + rest)
    mask[len(prompt) : len(prompt) + len(rest)] = 1
    return tokens, mask


def records(rule: str, count: int, seed: int) -> dict[str, Tensor]:
    """Return pairs in the form that the loss of preferences takes."""
    dice = random.Random(seed)
    drawn = [pair(rule, dice) for _ in range(count)]
    rows = [[tokens_of(asked, answer) for answer in answers] for asked, *answers in drawn]
    tokens, masks = (torch.stack([torch.stack([one[k] for one in row]) for row in rows]) for k in (0, 1))
    return {"input_ids": tokens, "completion_mask": masks}


@cache
def public_llama(steps: int) -> Any:
    """Return a Llama that writes the answers of the shop, trained without privacy."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(VOCABULARY), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=LENGTH, bos_token_id=0, eos_token_id=0,
        use_cache=False,
    )  # fmt: skip
    model, dice = LlamaForCausalLM(config), random.Random(0)
    rows = []
    for _ in range(PUBLIC):
        asked, thing = question(dice)
        rows.append(tokens_of(asked, Answer(thing, dice.choice(DESKS), dice.random() < 0.5)))
    tokens, masks = (torch.stack(part) for part in zip(*rows, strict=True))
    labels = tokens.masked_fill(masks == 0, -100)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(steps):
        some = torch.randint(PUBLIC, (64,))
        model(input_ids=tokens[some], labels=labels[some]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def scores_of(model: Any, rule: str, *, quick: bool) -> tuple[float, float, float, Tensor]:
    """Return the scores of a model, each as in FIGURES, and its log-probabilities of the test answers."""
    model.eval()
    test = records(rule, 20 if quick else TESTED, 10_000)
    tokens, masks = test["input_ids"], test["completion_mask"]
    labels = tokens.masked_fill(masks == 0, -100)
    with torch.no_grad():
        found = answer_probabilities(model, tokens[..., :-1], labels[..., 1:])
        perplexity = math.exp(-float(found[:, 0].sum() / masks[:, 0].sum()))
        dice, well, follows = random.Random(20_000), 0, 0
        asked = [question(dice) for _ in range(len(found) // 2)]
        for (_, thing), words in zip(asked, written(model, [text for text, _ in asked]), strict=True):
            answers = {
                str(Answer(thing, desk, thanks)): (desk, thanks) for desk in DESKS for thanks in (False, True)
            }
            if words in answers:
                desk, thanks = answers[words]
                well += 1
                follows += bool(thanks) if rule == "thanks" else desk == THINGS[thing]
    return perplexity, well / len(asked), follows / len(asked), found


def written(model: Any, asked: Sequence[str]) -> Iterator[str]:
    """Yield a sampled answer to each question, at temperature 1; all questions are of one length."""
    torch.manual_seed(0)
    rows = torch.tensor([[NUMBER[word] for word in text.split()] for text in asked])
    begin = rows.shape[1]
    while rows.shape[1] < LENGTH:
        last = logits_of(model(rows))[:, -1]
        rows = torch.cat([rows, torch.multinomial(last.softmax(1), 1)], 1)
    for row in rows[:, begin:].tolist():
        end = row.index(0) + 1 if 0 in row else len(row)
        yield " ".join(VOCABULARY[number] for number in row[:end])


@cache
def public_scores(rule: str, *, quick: bool) -> tuple[float, float, float, Tensor]:
    """Return the scores of the public model, as of any."""
    return scores_of(public_llama(3 if quick else 300), rule, quick=quick)


def run(trial: Trial, *, quick: bool) -> list[float]:
    """Return the scores of a trial."""
    public = public_llama(3 if quick else 300)
    before = public_scores(trial.rule, quick=quick)
    torch.manual_seed(trial.seed)
    model = with_lora(deepcopy(public)).train()
    data, steps = records(trial.rule, PAIRS, trial.seed), 2 if quick else STEPS
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], trial.learning_rate)
    loss = preference(trial.beta)
    if trial.epsilon is None:
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = trial.learning_rate * min(1.0, 2 * (1 - step / steps))
            some = torch.randint(PAIRS, (BATCH,))
            loss(model, **{name: part[some] for name, part in data.items()}).mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
    else:
        plan = Plan.calibrate(
            epsilon=trial.epsilon, delta=DELTA, records=PAIRS, batch_size=BATCH, steps=steps, clipping=0.1,
            adjacency="add-remove", unit="pair",
        )  # fmt: skip
        session = PrivateSession(model, optimizer, data, plan, loss=loss)
        train(session)
        model = session.current_model
    after = scores_of(model, trial.rule, quick=quick)
    gained = (after[3] - before[3]) @ torch.tensor([1.0, -1.0])
    return [
        share(before[3]), share(after[3]), float((gained > 0).double().mean()),
        *(value for two in zip(before[:3], after[:3], strict=True) for value in two),
    ]  # fmt: skip


def share(found: Tensor) -> float:
    """Return the share of pairs (n, 2) whose chosen answer is the more probable one."""
    return float((found[:, 0] > found[:, 1]).double().mean())


def main(arguments: Sequence[str] | None = None) -> None:
    """Start or resume the search."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--rules", nargs="+", choices=RULES, default=RULES)
    options.add_argument("--betas", nargs="+", type=float, default=BETAS)
    options.add_argument("--rates", nargs="+", type=float, default=RATES)
    options.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    options.add_argument("--quick", action="store_true", help="two steps of each, to try the command")
    options.add_argument("--out", type=Path, default=FOLDER, help="where searches/ lies")
    given = options.parse_args(arguments)
    tries = Tries(given.out / "searches" / "preferences.jsonl")
    settings = itertools.product(given.seeds, given.rules, given.betas, (8.0, None), given.rates)
    for seed, rule, beta, epsilon, rate in settings:
        trial = Trial(rule, beta, epsilon, rate, seed)
        scores = tries.scores(asdict(trial), partial(run, trial, quick=given.quick))
        figures = ", ".join(f"{name} {score:.3f}" for name, score in zip(FIGURES, scores, strict=True))
        sys.stdout.write(f"{trial}: {figures}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
