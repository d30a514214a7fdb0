"""The evaluation of a language model next to the public one that it began with: scores and completions."""

from __future__ import annotations

import json
import math
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from byte_model import END, write_model
from peft import PeftModel
from run_files import changed
from test_runs_language import LORA, configured, perplexity_of
from transformers import AutoModelForCausalLM

from tacit.errors import InvalidInput
from tacit.ledger import Ledger, Policy, RenyiBudget
from tacit.report.evaluation import evaluation_text, warn_if_public_is_better
from tacit.runs import prepare
from tacit.testing import seeded_generator

pytestmark = pytest.mark.usefixtures("no_pictures")
PROMPTS = ["ab", "q<b>c", "xyzw"]
RUN = {"[privacy]": f"[run]\nprompts = {json.dumps(PROMPTS)}\n[privacy]"}


def evaluated(path: Path, out: Path) -> tuple[dict[str, Any], Any]:
    run = prepare(path, out=out, generator=seeded_generator(3))
    assert run.start() is not None
    figures: dict[str, Any] = json.loads((out / "evaluation.json").read_text())
    return figures, run.data


def greedy(model: Any, prompt: str, most: int) -> str:
    """By a plain loop, without a batch, a cache or padding."""
    tokens = [ord(letter) - 33 for letter in prompt]
    for _ in range(most):
        token = int(model(torch.tensor([tokens])).logits[0, -1].argmax())
        if token == END:
            break
        tokens.append(token)
    letters = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters += [byte for byte in range(256) if byte not in letters]
    return bytes(letters[token] for token in tokens[len(prompt) :]).decode(errors="replace")


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # of peft
@pytest.mark.parametrize("lora", [False, True])
def test_the_public_model_is_scored_on_the_same_texts_and_answers_the_same_prompts(
    lora: bool, tmp_path: Path
) -> None:
    write_model(tmp_path / "base", initializer_range=0.5)  # so that four steps of an adapter can be seen
    changes = {"learning_rate = 0.01": "learning_rate = 0.5", **RUN}
    if lora:
        changes["[run]"] = LORA["[privacy]"].replace("[privacy]", "[run]")
    figures, data = evaluated(configured(tmp_path, changes), tmp_path / "run")
    public = AutoModelForCausalLM.from_pretrained(tmp_path / "base").eval()
    theirs = perplexity_of(public, data)
    assert figures["public_model"]["loss"] == pytest.approx(math.log(theirs), rel=1e-5)
    expected = [{"prompt": prompt, "public_model": greedy(public, prompt, 8 - 5)} for prompt in PROMPTS]
    own = PeftModel.from_pretrained(public, tmp_path / "run") if lora else None
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run") if own is None else own
    expected = [{**one, "model": greedy(model.eval(), one["prompt"], 8 - 5)} for one in expected]
    assert figures["completions"] == expected
    assert figures["loss"] == pytest.approx(math.log(perplexity_of(model, data)), rel=1e-5)
    assert figures["loss"] != pytest.approx(figures["public_model"]["loss"], rel=1e-3)
    assert any(one["model"] != one["public_model"] for one in expected)
    shown = f"{math.exp(figures['public_model']['loss']):.4f}"
    told = evaluation_text(figures).splitlines()
    assert told[0].split() == ["model", "public", "model", "baseline"]
    assert shown in told[3]
    page = (tmp_path / "run" / "evaluation.html").read_text()
    assert shown in page
    assert "q&lt;b&gt;c" in page
    assert "q<b>c" not in page


@pytest.mark.parametrize(("own", "useless"), [(0.9, False), (1.1, True), (None, True)])
def test_a_model_that_training_made_worse_is_called_useless(own: float | None, useless: bool) -> None:
    data = {"verdict": "As the rest.", "useless": False, "advice": [], "loss": own}
    warn_if_public_is_better(data)
    assert not data["useless"], "there is no public model"
    warn_if_public_is_better(of_public := data | {"public_model": {"score": 0.5, "loss": 1.0}})
    assert of_public["useless"] is useless
    assert str(of_public["verdict"]).startswith("USELESS: the public model") is useless


def test_without_a_public_model_only_the_runs_own_texts_are_shown(tmp_path: Path) -> None:
    figures, _ = evaluated(configured(tmp_path, RUN, weights=False), tmp_path / "run")
    assert "public_model" not in figures
    assert [(one["prompt"], one["public_model"]) for one in figures["completions"]] == [
        (prompt, None) for prompt in PROMPTS
    ]


def test_where_the_score_is_noisy_no_exact_score_of_the_public_model_is_told(tmp_path: Path) -> None:
    changes = {
        '"split"': '"first"',
        '"sequence"': '"document"',
        "clipping_norm = 0.5": "clipping_norm = 0.5\ntest_noise = 3.0",
        **RUN,
        "[run]": f'[ledger]\nurl = "{tmp_path}/budget.db"\ndataset = "texts"\n'
        "one_record_per_unit = true\n[run]",
    }
    path = configured(tmp_path, changes)
    budget = RenyiBudget(epsilon=50.0, delta=1e-3)
    with closing(Ledger.create(tmp_path / "budget.db")) as ledger:
        ledger.open_dataset("texts", Policy(unit="document", adjacency="add-remove", budget=budget))
    figures, _ = evaluated(path, tmp_path / "run")
    assert figures["interval"] is not None
    assert "public_model" not in figures
    assert len(figures["completions"]) == len(PROMPTS)


def test_a_prompt_that_fills_a_record_is_refused_before_the_first_step(tmp_path: Path) -> None:
    path = configured(tmp_path, {"[privacy]": '[run]\nprompts = ["ab", "abcdefgh"]\n[privacy]'})
    with pytest.raises(InvalidInput, match="prompt 2 has 8 tokens, but must have 1 to 7"):
        prepare(path, out=tmp_path / "run")
    path.write_text(changed(path.read_text(), {'"abcdefgh"]': '"c"' + ', "c"' * 9 + "]"}))
    with pytest.raises(InvalidInput, match="prompts"):
        prepare(path, out=tmp_path / "run")


def test_prompts_of_a_run_of_chats_are_a_users_first_turn(tmp_path: Path) -> None:
    write_model(tmp_path / "base")
    template = "{% for m in messages %}{{ m['role'][0] + m['content'] }}{% endfor %}"
    template += "{% if add_generation_prompt %}a{% endif %}"
    (tmp_path / "base" / "chat_template.jinja").write_text(template)
    own = {"text =": "messages =", '\ndocuments = "split"': "", '"sequence"': '"chat"', **RUN}
    path = configured(tmp_path, own)
    lines = []
    for number in range(60):
        turns = [{"role": "user", "content": f"{number}"}, {"role": "assistant", "content": "yo"}]
        lines.append(json.dumps({"body": turns}))
    (tmp_path / "documents.jsonl").write_text("\n".join(lines))
    figures, _ = evaluated(path, tmp_path / "run")
    public = AutoModelForCausalLM.from_pretrained(tmp_path / "base").eval()
    told = [one["public_model"] for one in figures["completions"]]
    assert told == [greedy(public, f"u{prompt}a", 8 - 7) for prompt in PROMPTS]
    assert figures["public_model"]["loss"] > 0
