"""Language models of transformers, loaded from local files and trained as a whole or with LoRA.

Letters: n records, T tokens per record, V tokens in the vocabulary.
"""

# Guarantee:
# * Nothing is downloaded, and weights are read only as safetensors, so no code in a model's folder runs.
# * The model predicts each token from those before it; a model that reads later tokens is refused.

from __future__ import annotations

import difflib
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from tacit.datasets import Dataset
from tacit.errors import InvalidInput, needed
from tacit.losses import logits_of
from tacit.pretrained.finding import TOKENIZER_FILES, ModelFolder
from tacit.pretrained.networks import config_of, load_network, refuse_lacking, said_plainly, without_bars
from tacit.report.model_card import CardFacts
from tacit.report.statement import Statement
from tacit.rounding import finite
from tacit.runs.completing import complete, stops_of
from tacit.runs.config import Config
from tacit.runs.kinds.texts import BASE, Tokens
from tacit.runs.model import Learner, begin_from, device_of
from tacit.runs.sections import LoraSection, ModelSection
from tacit.training.evaluation import (
    Evaluation,
    answer_probabilities,
    evaluate_pairs,
    evaluation_mode,
)

transformers = needed("transformers", "transformers", "[model] huggingface")

_MOST_LISTED = 8
_COMPLETION = 48  # tokens that the evaluation shows


def build_language_model(model: ModelSection, lora: LoraSection, length: int) -> nn.Module:
    """Build the model that the sections describe, in training mode, for records of ``length`` tokens.

    Random weights of the model or of LoRA come from torch's own generator.
    """
    folder = ModelFolder.check(str(model.huggingface))
    with without_bars():
        network = _load(folder)
    limit = getattr(network.config, "max_position_embeddings", None)
    if isinstance(limit, int) and length > limit:
        raise InvalidInput(
            f"[data] sequence_length = {length} exceeds the model's {limit} tokens ({folder.path}). Set at "
            f"most {limit}."
        )
    network.config.use_cache = False  # the cache is only for generation
    if lora.rank is not None:
        network = _with_lora(network, lora, lora.rank)
    model_: nn.Module = network.train()
    return model_


def network_of(model: nn.Module) -> Any:
    base = getattr(model, "get_base_model", None)
    return base() if callable(base) else model


def check_language_model(model: nn.Module, data: Dataset) -> None:
    """Check the model on dummy tokens before the first step."""
    name = f"the model of type {network_of(model).config.model_type}"
    length, vocabulary = data.input_shape[-1], data.vocabulary
    tokens = torch.zeros((2, length), dtype=torch.int64, device=next(model.parameters()).device)
    tokens[1, -1] = 1  # the records differ only in the last token
    try:
        with torch.random.fork_rng(), evaluation_mode(model), torch.no_grad():
            logits = logits_of(model(tokens))
    except InvalidInput:
        raise
    except Exception as problem:
        reason = str(problem).strip().partition("\n")[0].rstrip(".")
        raise InvalidInput(
            f"{name} does not work on records of {length} tokens: {type(problem).__name__}: {reason}. "
            "Choose a causal language model."
        ) from problem
    if tuple(logits.shape) != (2, length, vocabulary):
        raise InvalidInput(
            f"{name} must return {vocabulary} logits for each of {length} tokens; got shape "
            f"{tuple(logits.shape[1:])} per record. Choose a causal language model."
        )
    first, second = logits[:, :-1]
    # With random weights, later tokens may change the logits by only 1e-4 of them.
    if not bool((first - second).norm() <= 1e-5 * first.norm()):
        raise InvalidInput(
            f"{name} looks at later tokens to predict a token. Choose a causal language model. BERT and "
            "similar models need is_decoder = true."
        )


def _load(folder: ModelFolder) -> Any:
    """Load the model in float32, or make one with random weights if the folder holds no weights."""
    where = f'[model] huggingface = "{folder.path}"'
    config = config_of(folder, where)
    if getattr(config, "is_encoder_decoder", False):
        raise InvalidInput(
            f"{where}: {config.model_type} is not a causal language model: it is an encoder-decoder. Choose "
            "one such as GPT-2 or Llama."
        )
    kind = transformers.AutoModelForCausalLM
    if not folder.has_weights:
        with said_plainly(where, "a causal language model"):
            return kind.from_config(config, dtype=torch.float32)
    network, lacking = load_network(kind, folder, config, where, "a causal language model")
    refuse_lacking(lacking, where)
    return network


def _with_lora(network: Any, section: LoraSection, rank: int) -> nn.Module:
    peft = needed("peft", "lora", "[lora]")
    # The output layer is left out, because it often shares its weights with the embedding.
    conv, outputs = transformers.pytorch_utils.Conv1D, network.get_output_embeddings()
    layers = {
        name.rpartition(".")[2]: isinstance(layer, conv)
        for name, layer in network.named_modules()
        if isinstance(layer, nn.Linear | conv) and layer is not outputs
    }
    for target in section.targets:
        if target not in layers:
            close = difflib.get_close_matches(target, layers, n=1)
            names = ", ".join(list(layers)[:_MOST_LISTED])
            raise InvalidInput(
                f'[lora] targets: the model has no layer "{target}"'
                + (f"; did you mean {close[0]!r}?" if close else f"; it has {names}.")
            )
    transposed = {layers[target] for target in section.targets}
    if len(transposed) > 1:
        raise InvalidInput(
            "[lora] targets mix Linear and Conv1D layers: one adapter cannot contain both. Name layers of "
            "one type."
        )
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=rank if section.alpha is None else section.alpha,
        target_modules=list(section.targets),
        fan_in_fan_out=transposed.pop(),
        task_type="CAUSAL_LM",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft and transformers warn about each other
        adapted: nn.Module = peft.get_peft_model(network, config)
    return adapted


def facts_of(config: Config, folder: ModelFolder) -> dict[str, Any]:
    """Return what a run states of its base model."""
    facts = {
        "folder": folder.path.resolve().name,
        "model_type": str(folder.config["model_type"]),
        "weights_sha256": folder.weights_digest(),
        "tokenizer_sha256": folder.tokenizer_digest(),
    }
    template = folder.chat_template
    if template is not None and config.data.text is None:
        facts["chat_template_sha256"] = sha256(template.encode()).hexdigest()
    return facts


@final
class LanguageModel(Learner):
    used_by = "tacit generate RUN samples text; README.md shows how to load the model in transformers"
    _reference: Tensor | None = None
    """The log-probabilities of the test answers by the public model, (n, 2)."""

    @cached_property
    def _folder(self) -> ModelFolder:
        return ModelFolder.check(str(self.config.model.huggingface))

    @cached_property
    def base(self) -> dict[str, Any]:
        return facts_of(self.config, self._folder)

    @property
    def _length(self) -> int:
        return self.data.input_shape[-1]

    @property
    def adapter(self) -> bool:
        return self.config.lora.rank is not None

    def build(self) -> nn.Module:
        return build_language_model(self.config.model, self.config.lora, self._length)

    def check(self, model: nn.Module) -> None:
        check_language_model(model, self.data)
        self._encoded_prompts()  # raises if one is too long

    def compared(self, model: nn.Module, *, exact: bool) -> dict[str, Any]:
        prompts, found = self.config.run.prompts, dict[str, Any]()
        # Pairs are compared already.
        scored = exact and self._folder.has_weights and self.config.data.chosen is None
        if not prompts and not scored:
            return found
        own = self._completions(model)
        with self._public(model) as public:
            if scored:
                evaluation = self.evaluate(public)
                found["public_model"] = {"score": finite(evaluation.score), "loss": finite(evaluation.loss)}
            others = [None] * len(prompts) if public is None else self._completions(public)
        if prompts:
            found["completions"] = [
                {"prompt": prompt, "model": one, "public_model": other}
                for prompt, one, other in zip(prompts, own, others, strict=True)
            ]
        return found

    @contextmanager
    def _public(self, model: Any) -> Iterator[Any]:
        """Yield the public model that the run began with; None if it began with random weights."""
        if self.adapter:
            with model.disable_adapter():
                yield model
        elif self._folder.has_weights:
            yield self.build().to(next(model.parameters()).device)
        else:
            yield None

    def _completions(self, model: nn.Module) -> list[str]:
        """Return the most likely continuation of each prompt, token by token."""
        prompts = self._encoded_prompts()
        if not prompts:
            return []
        network, tokens = network_of(model), self._tokens
        room = self._length - max(map(len, prompts))
        written = complete(
            network,
            prompts,
            stop=stops_of(network, tokens.end),
            padding=tokens.padding,
            longest=min(_COMPLETION, room),
        )
        return [tokens.decode(row) for row in written]

    @cached_property
    def _tokens(self) -> Tokens:
        return Tokens(self._folder)

    def _encoded_prompts(self) -> list[list[int]]:
        data, prompts = self.config.data, []
        as_chats = data.messages is not None or (data.chosen is not None and data.prompt is None)
        for number, prompt in enumerate(self.config.run.prompts, 1):
            where = f"[run] prompts: prompt {number}"
            if as_chats:
                row = self._tokens.chats.begin([{"role": "user", "content": prompt}], where)
            else:
                row = self._tokens.begin(prompt)
            if not 0 < len(row) < self._length:
                raise InvalidInput(
                    f"{where} has {len(row)} tokens, but must have 1 to {self._length - 1}. Change it."
                )
            prompts.append(row)
        return prompts

    def evaluate(self, model: nn.Module) -> Evaluation:
        if self.config.data.chosen is None:
            return super().evaluate(model)
        own = answer_probabilities(model, *self.data.test)
        if self._reference is None:  # the public model stays the same
            with self._public(model) as public:
                self._reference = answer_probabilities(public, *self.data.test)
        return evaluate_pairs(own, self._reference, self.config.training.beta)

    def begin(self, folder: Path, *, resumed: bool) -> None:
        for leftover in folder.glob(".saving.*.tmp"):  # left by a killed process
            shutil.rmtree(leftover)
        begin_from(folder / BASE, self.base, self.config.model.huggingface, resumed=resumed)

    def stated(self, model: nn.Module) -> dict[str, Any]:
        base, lora = self.base, self.config.lora
        whole = sum(p.numel() for p in model.parameters())
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        line = f"{base['model_type']} of transformers, {whole:,} parameters"
        if self.adapter:
            line += (
                f", of which {trained:,} are trained: LoRA of rank {lora.rank} on {', '.join(lora.targets)}"
            )
        public = [f"the tokenizer of {base['folder']}, SHA-256 {base['tokenizer_sha256']}"]
        not_covered = [
            "the tokenizer, which is taken to be public: one that was made from the records could reveal "
            "something about them"
        ]
        if "chat_template_sha256" in base:
            public.append(f"the chat template of {base['folder']}, SHA-256 {base['chat_template_sha256']}")
        notes = [_record_in_words(self.config)]
        if base["weights_sha256"] is None:
            notes.append("pre-training: all weights were random before the first step")
        else:
            public.insert(
                0, f"the base model {base['folder']}, SHA-256 of its weights {base['weights_sha256']}"
            )
            not_covered.insert(
                0,
                "the data that the base model was trained on before this run: the guarantee is for the "
                "records of this run alone",
            )
        if self.config.data.documents == "split":
            not_covered.insert(
                0,
                "a document as a whole: each of its sequences is protected separately, so a document of "
                "several sequences is a group; see the group figures",
            )
        return {"model": line, "public_data": public, "not_covered": not_covered, "notes": notes}

    def save(self, model: nn.Module, statement: Statement, folder: Path) -> tuple[str, ...]:
        network = network_of(model)
        used, network.config.use_cache = (
            network.config.use_cache,
            bool(self._folder.config.get("use_cache", 1)),
        )
        names = []
        try:
            with tempfile.TemporaryDirectory(dir=folder, prefix=".saving.", suffix=".tmp") as temporary:
                result: Any = model if self.adapter else network
                with without_bars():
                    result.save_pretrained(
                        temporary, **({"save_embedding_layers": False} if self.adapter else {})
                    )
                for name in TOKENIZER_FILES:
                    if (self._folder.path / name).is_file():
                        shutil.copyfile(self._folder.path / name, Path(temporary) / name)
                for file in sorted(Path(temporary).iterdir()):
                    if file.name != "README.md":  # peft's model card, since the run writes another one
                        os.chmod(file, 0o644)
                        os.replace(file, folder / file.name)
                        names.append(file.name)
        finally:
            network.config.use_cache = used
        return (*names, BASE)

    def trained(self, folder: Path) -> nn.Module:
        self.begin(folder, resumed=True)
        return trained_network(self.config, folder, self.config.run.device)

    def card_facts(self, statement: Statement) -> CardFacts:
        return language_card_facts(self.config, self.base)


def trained_network(config: Config, folder: Path, device: str) -> nn.Module:
    """Load the model of the finished run in ``folder``, in training mode."""
    adapted = config.lora.rank is not None
    model = config.model if adapted else ModelSection(huggingface=str(folder))
    network = build_language_model(model, LoraSection(), config.data.sequence_length or 0)
    if adapted:
        import peft

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            network = peft.PeftModel.from_pretrained(network, folder).train()
    return network.to(device_of(device))


def language_card_facts(config: Config, base: Mapping[str, Any]) -> CardFacts:
    adapter = config.lora.rank is not None
    return CardFacts(
        kind="text",
        task="text",
        classes=(),
        records=(
            f"Text, of which the model reads at most {config.data.sequence_length} tokens, as in training."
        ),
        library="peft" if adapter else "transformers",
        use=(_USE_ADAPTER if adapter else _USE_MODEL).format_map(base),
    )


def _record_in_words(config: Config) -> str:
    """Say what one record is, or one row of a person, and what of it is learned."""
    data = config.data
    record = "record" if data.rows_per_user is None else "row"
    rule = _RULES[str(data.documents) if data.text is not None else tuple(data.fields)[-1]]
    return f"one {record} is " + rule.format(length=data.sequence_length, beta=config.training.beta)


_SHORTENED = (
    "; beyond {length} tokens, what stands before the first answer loses its first tokens, and then the rest "
    "its last ones"
)
_RULES = {
    "first": "the first {length} tokens of a document; later tokens are not trained on",
    "split": "a sequence of {length} tokens of a document; they do not overlap",
    "completion": f"a prompt with its completion, which alone is learned{_SHORTENED}",
    "messages": f"a chat, and only the turns of the assistant are learned{_SHORTENED}",
    "rejected": (
        "a prompt with a chosen and a rejected answer, and the loss is that of DPO with beta = "
        f"{{beta:g}}, in comparison with the base model{_SHORTENED}"
    ),
}
_USE_MODEL = """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
model = AutoModelForCausalLM.from_pretrained(".")
```
"""
_USE_ADAPTER = """\
This folder holds an adapter. It belongs to the base model {folder}, whose weights have the SHA-256
`{weights_sha256}`.

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
base = AutoModelForCausalLM.from_pretrained("{folder}")  # the path of its folder
model = PeftModel.from_pretrained(base, ".")
```
"""
