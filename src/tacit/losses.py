"""Per-example losses: one number for each record, the mean over its outputs or positions.

Each function returns a loss for :class:`tacit.PrivateSession`.  A record is either

* a tuple such as ``(x, y)``: the last part is the target, the others are positional inputs of the model; or
* a mapping, with the target under ``labels``, ``label``, ``targets``, ``target`` or ``y``.  The other entries
  are keyword inputs of the model; a single one is passed by position if ``model.forward`` has no parameter of
  that name.

The model may return a tensor, an object or dictionary with ``logits``, or a tuple that begins with a tensor.
The loss that a model computes from ``labels`` is ignored, because it is a mean over the batch.

**Guarantee**

* The loss of a record depends on that record alone: no mean over a batch, no statistic of a batch.

**Not covered**

* Class weights that you compute from the records.  They leak information that no budget accounts for.
  Declare class weights instead.

Letters: n records; C classes; L positions; V tokens.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.clipping.engine import PerExampleLoss
from tacit.errors import InvalidInput, PrivacyRefusal, check_integer, check_real

__all__ = ["causal", "classification", "completion", "masked", "multilabel", "preference", "regression"]

_TARGETS = ("labels", "label", "targets", "target", "y")
_TOKENS = ("input_ids", "tokens")
MASKS = ("completion_mask", "assistant_masks")
"""TRL's names for masks of the tokens to train on."""
_PACKED = ("seq_lengths", "seq_idx", "cu_seq_lens_q", "cu_seq_lens_k")
"""Keys that TRL and transformers add to packed rows."""
_REFERENCES = ("ref_chosen_logps", "ref_rejected_logps")
PACKED_ROWS = (
    "the rows are packed, as {} shows. A packed row has tokens of several examples, so a guarantee for one "
    "row would not protect an example. Put one example in each row (packing=False in TRL), and pad with "
    "tacit.collate.pad."
)
_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss)
_NUMBERS = (
    nn.MSELoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
    nn.PoissonNLLLoss,
    nn.KLDivLoss,
    nn.SoftMarginLoss,
    nn.MultiLabelSoftMarginLoss,
    nn.HingeEmbeddingLoss,
)


def classification(
    *, weight: Sequence[float] | None = None, label_smoothing: float = 0.0, ignore_index: int = -100
) -> PerExampleLoss:
    """Return a loss: the cross-entropy between logits (n, C) and class numbers (n,).

    With more axes, as in ``torch.nn.CrossEntropyLoss``, logits are (n, C, ...) and class numbers (n, ...).

    Args:
        weight: one weight for each of the C classes. Choose them without looking at the records.
        label_smoothing: the share of each target that is spread over all classes, in [0, 1).
        ignore_index: the class number of positions to ignore.

    >>> loss = classification(weight=[1.0, 3.0])
    >>> loss(nn.Identity(), torch.zeros(2, 2), torch.tensor([0, 1]))
    tensor([0.6931, 2.0794])
    """
    weights = None if weight is None else torch.tensor([check_real("weight", w, low=0.0) for w in weight])
    smoothing = check_real("label_smoothing", label_smoothing, low=0.0, high=1.0, open_high=True)
    ignored = check_integer("ignore_index", ignore_index, low=-(2**63))

    def loss(model: nn.Module, *parts: Tensor, **by_name: Tensor) -> Tensor:
        logits, targets = _read(model, parts, by_name)
        targets = _checked_classes(logits, targets)
        each = F.cross_entropy(
            logits,
            targets,
            weight=None if weights is None else weights.to(logits),
            ignore_index=ignored,
            reduction="none",
            label_smoothing=smoothing,
        )
        return _mean_without_ignored(each, targets, ignored)

    return loss


def regression() -> PerExampleLoss:
    """Return a loss: the mean squared error between outputs and targets.

    A record must have as many outputs as targets.

    >>> regression()(nn.Identity(), torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 0.0]]))
    tensor([2.5000])
    """

    def loss(model: nn.Module, *parts: Tensor, **by_name: Tensor) -> Tensor:
        outputs, targets = _same_shape(*_read(model, parts, by_name))
        return _mean_per_record((outputs - targets).square())

    return loss


def multilabel() -> PerExampleLoss:
    """Return a loss: the binary cross-entropy between logits (n, k) and labels (n, k), each 0 or 1.

    A record's loss is the mean over its k labels.

    >>> multilabel()(nn.Identity(), torch.zeros(1, 3), torch.tensor([[1.0, 0.0, 1.0]]))
    tensor([0.6931])
    """

    def loss(model: nn.Module, *parts: Tensor, **by_name: Tensor) -> Tensor:
        outputs, targets = _same_shape(*_read(model, parts, by_name))
        return _mean_per_record(F.binary_cross_entropy_with_logits(outputs, targets, reduction="none"))

    return loss


def causal(*, ignore_index: int = -100) -> PerExampleLoss:
    """Return a loss for language models: the mean cross-entropy of the next token, in nats.

    It takes logits (n, L, V) and labels (n, L). The logits at a position predict the label at the next
    position, as in transformers. Without labels, the tokens are the labels, except where ``attention_mask``
    is 0. A record's loss is the mean over its positions with a label other than ``ignore_index``; without
    such a position, it is 0. The virtual tokens of prompt tuning have no label.

    >>> model = nn.Embedding(5, 5)
    >>> tokens = torch.tensor([[1, 2, 3], [1, 2, 3]])
    >>> causal()(model, tokens, torch.tensor([[1, 2, 3], [1, -100, -100]])).shape
    torch.Size([2])
    """
    ignored = check_integer("ignore_index", ignore_index, low=-(2**63))

    def loss(model: nn.Module, *parts: Tensor, **by_name: Tensor) -> Tensor:
        _check_rows(by_name)
        if len(parts) == 1:
            parts = (*parts, parts[0])
        elif by_name and not any(key in by_name for key in _TARGETS):
            by_name = {**by_name, "labels": _labels_from_tokens(by_name, ignored)}
        logits, labels = _read(model, parts, by_name)
        inputs = (*parts[:-1], *(by_name[key] for key in _TOKENS if key in by_name))
        if any(tokens.shape == labels.shape for tokens in inputs):
            labels = F.pad(labels, (_virtual_tokens(logits, labels), 0), value=ignored)
        _check_tokens(logits, labels, "causal", ignored)
        return _mean_of_tokens(logits[:, :-1], labels[:, 1:], ignored)

    return loss


def completion() -> PerExampleLoss:
    """Return the loss of :func:`causal`, computed over selected tokens only, such as those of an answer.

    A record is a mapping with ``input_ids`` (n, L), as TRL's ``SFTTrainer`` prepares it. At least one other
    entry (n, L) must select the tokens to train on. ``completion_mask`` and ``assistant_masks`` are 1 at
    these tokens; ``labels`` is -100 at all others. With several entries, only tokens that all of them select
    count.

    >>> record = {"input_ids": torch.tensor([[1, 2, 3]]), "completion_mask": torch.tensor([[0, 0, 1]])}
    >>> completion()(nn.Embedding(5, 5), **record).shape
    torch.Size([1])
    """
    of_labels = causal()

    def loss(model: nn.Module, **by_name: Tensor) -> Tensor:
        inputs = {key: part for key, part in by_name.items() if key not in MASKS}
        masks = [part for key, part in by_name.items() if key in MASKS]
        if not masks and "labels" not in inputs:
            raise InvalidInput(
                f"a record has no {', '.join(MASKS)} or labels to choose the tokens to train on. Add one of "
                "these keys, or use tacit.losses.causal() to train on all tokens."
            )
        labels = inputs["labels"] if "labels" in inputs else _labels_from_tokens(inputs, -100)
        for mask in masks:
            labels = labels.masked_fill(mask == 0, -100)
        return of_labels(model, **{**inputs, "labels": labels})

    return _reading(loss, MASKS)


def preference(
    beta: float = 0.1, *, label_smoothing: float = 0.0, reference: nn.Module | None = None
) -> PerExampleLoss:
    """Return the loss of direct preference optimization (DPO) for pairs of a chosen and a rejected answer.

    A record is one pair, a mapping. Its ``input_ids`` (n, 2, L) are the prompt with the chosen answer, then
    the prompt with the rejected one. Its ``completion_mask`` (n, 2, L) is 1 at the tokens of the answers.
    :func:`tacit.collate.pairs` makes such records from rows of TRL's ``DPOTrainer``.

    The loss is -log sigmoid(beta * d) (Rafailov et al., 2305.18290, equation 7). Each model has a log-ratio:
    the log-probability of the chosen answer minus that of the rejected one. d is the log-ratio of the trained
    model minus that of a reference. The reference is the first of these that you provide:

    * in the record, ``ref_chosen_logps`` and ``ref_rejected_logps`` (n,): the log-probabilities of the two
      answers under a public model;
    * the module ``reference``;
    * the trained model without its adapters and without dropout, if it is a peft model.

    Args:
        beta: how strongly the loss pulls the trained model towards the reference, above 0.
        label_smoothing: the share of pairs that you assume to be swapped, in [0, 0.5) (conservative DPO).
        reference: a frozen model with the same vocabulary, in evaluation mode.

    Raises:
        InvalidInput: if ``reference`` is not frozen.

    >>> pair = {"input_ids": torch.tensor([[[1, 2, 3], [1, 2, 4]]]),
    ...         "completion_mask": torch.tensor([[[0, 0, 1], [0, 0, 1]]])}
    >>> frozen = nn.Embedding(5, 5).requires_grad_(False).eval()
    >>> preference(reference=frozen)(frozen, **pair)
    tensor([0.6931])
    """
    beta = check_real("beta", beta, low=0.0, open_low=True)
    smoothing = check_real("label_smoothing", label_smoothing, low=0.0, high=0.5, open_high=True)
    if reference is not None and (reference.training or any(p.requires_grad for p in reference.parameters())):
        raise InvalidInput(
            "the reference must be frozen: without gradients and in eval mode. Pass "
            "reference=copy.deepcopy(model).eval().requires_grad_(False)."
        )

    def loss(model: nn.Module, **pair: Tensor) -> Tensor:
        inputs, labels = _pair(pair)
        public_chosen, public_rejected = (pair.get(key) for key in _REFERENCES)
        known = public_chosen is not None
        if known != (public_rejected is not None) or (known and reference is not None):
            raise InvalidInput(
                f"the records have only one of {' and '.join(_REFERENCES)}. Give both, or remove both and "
                "pass reference=."
            )
        vocabulary = None
        if public_chosen is None or public_rejected is None:
            frozen = without_adapters(model) if reference is None else nullcontext(reference)
            with torch.no_grad(), frozen as network:
                logits = _logits_of_pair(network, inputs, labels)
            (public_chosen, public_rejected), vocabulary = _sums(logits, labels), logits.shape[2]
            del logits  # as large as the model's own, which come next

        logits = _logits_of_pair(model, inputs, labels)
        if vocabulary not in (None, logits.shape[2]):
            raise InvalidInput(
                f"the reference has a vocabulary of {vocabulary} tokens, and the model one of "
                f"{logits.shape[2]}. Pass a reference with the model's vocabulary."
            )
        chosen, rejected = _sums(logits, labels)
        return preference_loss(chosen, rejected, public_chosen, public_rejected, beta, smoothing)

    return _reading(loss, ("prompt_ids", "chosen_ids", "rejected_ids", "completion_mask", *_REFERENCES))


def preference_loss(
    policy_chosen: Tensor,
    policy_rejected: Tensor,
    reference_chosen: Tensor,
    reference_rejected: Tensor,
    beta: float,
    smoothing: float,
) -> Tensor:
    """Return the (n,) DPO losses from the (n,) log-probabilities of the answers.

    >>> one, two = torch.tensor([-1.0]), torch.tensor([-2.0])
    >>> preference_loss(one, two, two, two, 1.0, 0.0)
    tensor([0.3133])
    """
    margin = beta * ((policy_chosen - reference_chosen) - (policy_rejected - reference_rejected))
    return -(1 - smoothing) * F.logsigmoid(margin) - smoothing * F.logsigmoid(-margin)


def masked(*, ignore_index: int = -100) -> PerExampleLoss:
    """Return a loss: the cross-entropy of the label at each position, in nats.

    It is for masked language models and token classification, with logits (n, L, V) and labels (n, L). A
    record's loss is the mean over its positions with a label other than ``ignore_index``; without such a
    position, it is 0.

    >>> masked()(nn.Embedding(5, 5), torch.tensor([[1, 2, 3]]), torch.tensor([[-100, -100, -100]]))
    tensor([0.], grad_fn=<DivBackward0>)
    """
    ignored = check_integer("ignore_index", ignore_index, low=-(2**63))

    def loss(model: nn.Module, *parts: Tensor, **by_name: Tensor) -> Tensor:
        logits, labels = _read(model, parts, by_name)
        _check_tokens(logits, labels, "masked", ignored)
        return _mean_of_tokens(logits, labels, ignored)

    return loss


def per_record(loss: object, model: nn.Module) -> PerExampleLoss:
    """Return the loss as a function ``(model, *parts) -> (n,)``, which the session calls.

    A function is returned unchanged.  A loss module of ``torch.nn`` is copied with ``reduction="none"`` to
    the model's dtype and device, and averaged per record.

    Raises:
        InvalidInput: if ``loss`` is not a loss, or is a module that takes more than outputs and targets.

    >>> loss = per_record(nn.MSELoss(), nn.Identity())
    >>> loss(nn.Identity(), torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.zeros(2, 2))
    tensor([2.5000, 4.5000])
    """
    for maker in (classification, regression, multilabel, causal, completion, masked, preference):
        if loss is maker:
            name = f"tacit.losses.{maker.__name__}"
            raise InvalidInput(f"loss is {name}, a function that returns a loss. Call it: {name}().")
    if isinstance(loss, type):
        raise InvalidInput(f"loss is the class {loss.__name__}. Pass an instance: loss={loss.__name__}().")
    if not callable(loss):
        raise InvalidInput(
            "loss must be a function loss(model, *parts) that returns one loss per record, a module such as "
            f"torch.nn.CrossEntropyLoss(), or one of tacit.losses; got {type(loss).__name__}."
        )
    if getattr(loss, "__module__", "") == F.__name__:
        name = getattr(loss, "__name__", "a function")
        raise InvalidInput(
            f"loss is torch.nn.functional.{name}, which takes outputs and targets, but a session calls "
            "loss(model, inputs, targets). Pass a module, such as torch.nn.CrossEntropyLoss(), or lambda "
            f'model, x, y: F.{name}(model(x), y, reduction="none").'
        )
    return _of_module(loss, model) if isinstance(loss, nn.modules.loss._Loss) else loss


def logits_of(output: Any) -> Tensor:
    """Return the tensor in a model's output: itself, ``.logits``, ``["logits"]`` or the first of a tuple.

    >>> logits_of({"logits": torch.zeros(2)})
    tensor([0., 0.])
    """
    logits = output
    if not isinstance(output, Tensor):
        if isinstance(getattr(output, "logits", None), Tensor):
            logits = output.logits
        elif isinstance(output, Mapping):
            logits = output.get("logits")
        elif isinstance(output, tuple | list) and output:
            logits = output[0]
    if not isinstance(logits, Tensor):
        raise InvalidInput(
            f"the model returns {type(output).__name__} without a tensor named logits. Return a tensor, or "
            "pass a loss function that reads this output."
        )
    return logits


def _of_module(loss: Any, model: nn.Module) -> PerExampleLoss:
    name = type(loss).__name__
    if not isinstance(loss, (*_CLASSES, *_NUMBERS)):
        raise InvalidInput(
            f"loss module {name} takes arguments besides output and target. Pass a function loss(model, "
            f'*parts) that calls {name} with reduction="none" and returns one loss per record.'
        )
    for key, weight in loss.named_buffers():
        if not bool(weight.isfinite().all()) or bool((weight < 0).any()):
            raise InvalidInput(f"{name}({key}=...) must be finite and not negative. Correct the weights.")
    own = copy.deepcopy(loss)
    own.reduction = "none"
    like = next((p for p in model.parameters() if p.is_floating_point()), None)
    own = own if like is None else own.to(like.device, like.dtype)
    classes = isinstance(loss, _CLASSES)
    ignored = getattr(loss, "ignore_index", None)

    def of_record(model: nn.Module, *parts: Tensor, **by_name: Tensor) -> Tensor:
        outputs, targets = _read(model, parts, by_name)
        if not classes:
            outputs, targets = _same_shape(outputs, targets)
            return _mean_per_record(own(outputs, targets))
        targets = _checked_classes(outputs, targets)
        return _mean_without_ignored(own(outputs, targets), targets, ignored)

    return of_record


def _read(model: nn.Module, parts: tuple[Tensor, ...], by_name: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the model's logits for the records, and their targets."""
    if not by_name:
        if len(parts) < 2:
            raise InvalidInput(
                f"a record has {len(parts)} part, but this loss needs an input and a target. Pass "
                "data=(inputs, targets), or a loss function."
            )
        return logits_of(model(*parts[:-1])), parts[-1]
    targets = [key for key in _TARGETS if key in by_name]
    if len(targets) != 1 or len(by_name) < 2:
        raise InvalidInput(
            f"a record must have exactly one of the keys {', '.join(_TARGETS)} for the target, and other "
            f"keys for the model; got {len(targets)} of them in {len(by_name)} keys. Rename the keys, or "
            "pass a loss function."
        )
    inputs = {key: part for key, part in by_name.items() if key != targets[0]}
    if _names_all(model.forward, inputs):
        return logits_of(model(**inputs)), by_name[targets[0]]
    if len(inputs) > 1:
        raise InvalidInput(
            f"each key of a record except {targets[0]!r} must be a parameter of "
            f"{type(model).__name__}.forward, and some of the {len(inputs)} are not. Remove or rename these "
            "keys, or pass a loss function."
        )
    return logits_of(model(*inputs.values())), by_name[targets[0]]


def _names_all(forward: Callable[..., object], inputs: Mapping[str, Tensor]) -> bool:
    parameters = inspect.signature(forward).parameters
    return all(key in parameters for key in inputs) or any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
    )


def _labels_from_tokens(by_name: Mapping[str, Tensor], ignored: int) -> Tensor:
    """Return the tokens as labels, for records without labels."""
    tokens = next((by_name[key] for key in _TOKENS if key in by_name), None)
    if tokens is None:
        raise InvalidInput(
            "a record has no labels and no tokens. Rename a key to one of "
            f"{', '.join((*_TARGETS, *_TOKENS))}, or pass a loss function."
        )
    mask = by_name.get("attention_mask")
    return tokens if mask is None else tokens.masked_fill(mask == 0, ignored)


def _checked_classes(logits: Tensor, targets: Tensor) -> Tensor:
    """Check class numbers and return them as int64; return (n, C) probabilities unchanged."""
    if targets.is_floating_point() and targets.shape == logits.shape:
        return targets
    if targets.is_floating_point():
        raise InvalidInput(
            f"the targets are of type {targets.dtype}; class numbers must be integers. Convert them: "
            "labels.astype(int). To predict numbers, use tacit.losses.regression()."
        )
    if logits.dim() < 2 or targets.shape != logits.shape[:1] + logits.shape[2:]:
        raise InvalidInput(
            f"a record's output has {_record_shape(logits)} and its target {_record_shape(targets)}; class "
            "numbers of shape (...) need logits of shape (classes, ...). Reshape the labels, or use "
            "tacit.losses.masked() for labels (L,) and logits (L, classes)."
        )
    return targets.long()


def _reading(loss: PerExampleLoss, columns: tuple[str, ...]) -> PerExampleLoss:
    """Note the dataset columns that a loss or its collate function reads and no model takes."""
    loss.columns = columns  # type: ignore[attr-defined]
    return loss


def _check_rows(by_name: Mapping[str, Tensor]) -> None:
    """Refuse packed rows, and masks that the loss would not read."""
    if packed := [key for key in _PACKED if key in by_name]:
        raise PrivacyRefusal(PACKED_ROWS.format(packed[0]))
    if unread := [key for key in MASKS if key in by_name]:
        raise InvalidInput(
            f"a record has {unread[0]}, but tacit.losses.causal ignores it and trains on all tokens. Use "
            "tacit.losses.completion(), or remove the key to train on all tokens."
        )


def _virtual_tokens(logits: Tensor, labels: Tensor) -> int:
    """Return how many more positions the output has than the labels; prompt tuning adds them in front."""
    return max(logits.shape[1] - labels.shape[1], 0) if logits.dim() == 3 and labels.dim() == 2 else 0


def _check_tokens(logits: Tensor, labels: Tensor, name: str, ignored: int) -> None:
    more = _virtual_tokens(logits, labels)
    if more > 0 and not labels.is_floating_point():
        raise InvalidInput(
            f"a record's output has {logits.shape[1]} positions and its labels have {labels.shape[1]}. Give "
            f"each position a label, or {ignored} to ignore it. If the model adds {more} tokens in front, as "
            f"in prompt tuning, use F.pad(labels, ({more}, 0), value={ignored}) with tacit.losses.{name}."
        )
    if logits.dim() != 3 or labels.shape != logits.shape[:2] or labels.is_floating_point():
        raise InvalidInput(
            f"a record's output has {_record_shape(logits)} and its labels {_record_shape(labels)} of "
            f"{labels.dtype}; tacit.losses.{name} needs logits (L, tokens) and integer labels (L,). Give "
            "one label per token, or use tacit.losses.classification() for one label per record."
        )


def _pair(pair: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    """Return the model's inputs (2n, L) and the labels (2n, L - 1) of the next tokens of n pairs."""
    shapes = [pair[key].shape[1:] for key in ("input_ids", "completion_mask") if key in pair]
    if len(shapes) < 2 or shapes[0] != shapes[1] or len(shapes[0]) != 2 or shapes[0][0] != 2:
        raise InvalidInput(
            "a pair must be a mapping with input_ids and completion_mask of shape (2, L), the chosen answer "
            "first. tacit.collate.pairs(length=...) makes it from prompt_ids, chosen_ids and rejected_ids."
        )
    inputs = {
        key: part.flatten(0, 1) for key, part in pair.items() if key not in ("completion_mask", *_REFERENCES)
    }
    outside = pair["completion_mask"].flatten(0, 1) == 0
    return inputs, inputs["input_ids"].masked_fill(outside, -100)[:, 1:].long()


def _logits_of_pair(model: nn.Module, inputs: Mapping[str, Tensor], labels: Tensor) -> Tensor:
    """Return (2n, L - 1, V) logits of the next tokens, without those of virtual tokens."""
    logits = logits_of(model(**inputs) if _names_all(model.forward, inputs) else model(*inputs.values()))
    if logits.dim() != 3 or logits.shape[1] <= labels.shape[1]:
        raise InvalidInput(
            f"a record's output has {_record_shape(logits)} for {labels.shape[1] + 1} tokens; "
            "tacit.losses.preference needs logits (L, tokens). Pass a causal language model."
        )
    return logits[:, -labels.shape[1] - 1 : -1]


def _sums(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return (n,) sums of log-probabilities of the chosen answers, and (n,) of the rejected ones."""
    each = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=-100)
    sums = -each.sum(1).reshape(-1, 2)
    return sums[:, 0], sums[:, 1]


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[nn.Module]:
    """Turn off the adapters of a peft model and dropout within the ``with`` block.

    Raises:
        InvalidInput: if the model has no adapters, if they are merged into the weights, or if weights outside
            them are trained.

    >>> with without_adapters(nn.Linear(2, 2)):
    ...     pass
    Traceback (most recent call last):
    tacit.errors.InvalidInput: Linear has no adapters, so the loss needs a reference. ...
    """
    prompts: Any = getattr(model, "prompt_encoder", None)
    layers: list[Any] = [part for part in model.modules() if hasattr(part, "_disable_adapters")]
    if prompts is None and not layers:
        raise InvalidInput(
            f"{type(model).__name__} has no adapters, so the loss needs a reference. Copy the model before "
            "training: reference=copy.deepcopy(model).eval().requires_grad_(False)."
        )
    if any(getattr(layer, "merged", False) for layer in layers):
        raise InvalidInput(
            "the adapters are merged into the weights, so the loss cannot switch them off. Call "
            "model.unmerge_adapter(), or pass a frozen model as reference=."
        )
    adapters = [getattr(layer, name) for layer in layers for name in layer.adapter_layer_names]
    adapters += [] if prompts is None else [prompts]
    own = {id(p) for adapter in adapters for p in adapter.parameters()}
    if others := [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in own]:
        raise InvalidInput(
            f"the weights {others[0]} are trained but belong to no adapter, so even the model without "
            "adapters would change. Freeze them, or pass a frozen model as reference=."
        )

    # Not by peft's own disable_adapter(): it changes requires_grad, which no code can do inside a step.
    network: Any = model
    public = network if prompts is None else network.get_base_model()
    modes = [(part, part.training) for part in model.modules()]
    before = [layer._disable_adapters for layer in layers]
    public.eval()
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield public
    finally:
        for layer, was in zip(layers, before, strict=True):
            layer._disable_adapters = was
        for part, mode in modes:
            part.training = mode


def _same_shape(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Give outputs and targets one shape and type; broadcasting would pair each record with all others."""
    if math.prod(outputs.shape[1:]) != math.prod(targets.shape[1:]):
        raise InvalidInput(
            f"a record's output has {_record_shape(outputs)}, but its target {_record_shape(targets)}. Make "
            "the model return one value per value of the target."
        )
    return outputs.reshape(targets.shape), targets.to(outputs.dtype)


def _record_shape(tensor: Tensor) -> str:
    return f"shape {tuple(tensor.shape[1:])}"


def _mean_of_tokens(logits: Tensor, labels: Tensor, ignored: int) -> Tensor:
    labels = labels.long()
    each = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=ignored)
    return _mean_without_ignored(each, labels, ignored)


def _mean_without_ignored(each: Tensor, targets: Tensor, ignored: int | None) -> Tensor:
    """Return the mean over each record's positions that are not ignored, or 0 if there are none."""
    if each.dim() == 1 or ignored is None or targets.shape != each.shape:
        return _mean_per_record(each)
    count = (targets != ignored).flatten(1).sum(1).clamp(min=1)
    return each.flatten(1).sum(1) / count


def _mean_per_record(each: Tensor) -> Tensor:
    """Return the mean over all axes except the first: (n, ...) to (n,)."""
    return each if each.dim() == 1 else each.flatten(1).mean(1)
