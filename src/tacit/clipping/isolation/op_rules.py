"""How operations hand on the records that numbers come from: by dimensions.

Letters: B rows; T positions or steps.

A rule returns the owners of a result in a shape that broadcasts to it, or None if no record is in it.  What
it may go by: shapes, dimensions, and the numbers in tensors that no record is in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor

from tacit.clipping.isolation.call import Call

__all__ = [
    "Rule",
    "addmm",
    "along",
    "attention",
    "batch_norm",
    "but_last",
    "by_leading",
    "ctc",
    "ctc_backward",
    "distances",
    "embedding",
    "first_alone",
    "group_norm",
    "layer_norm",
    "mm",
    "mv",
    "nll",
    "of_classes",
    "pointwise",
    "reduced",
    "rnn_layer",
    "rrelu",
    "trilinear",
    "whole",
]

Rule: TypeAlias = Callable[[Call, Tensor], Tensor | None]
"""Of an operation and one of its results, to this one's owners."""
_NO_ROWS = frozenset({"weight", "bias", "running_mean", "running_var", "input_bias", "hidden_bias"})
"""What belongs to a layer: where records are in it, they are not by row."""

_BESIDE = frozenset({"pivots", "LU_pivots", "tau"})
"""What goes with matrices, and has a dimension less."""


def whole(call: Call, result: Tensor) -> Tensor | None:
    """Everything that is read meets."""
    del result
    owners = call.whole()
    return None if owners is None else owners.view(())


def pointwise(call: Call, result: Tensor) -> Tensor | None:
    """What is computed element by element, broadcast."""
    del result
    return call.together(map(call.of, call.reads()))


def _dims(call: Call, tensor: Tensor) -> list[int]:
    """The dimensions that an operation is told to go along; all, if none."""
    dim = call.get("dim")
    if dim is None or dim == []:
        return list(range(tensor.dim()))
    return [d % max(1, tensor.dim()) for d in ([dim] if isinstance(dim, int) else dim)]


def along(call: Call, result: Tensor) -> Tensor | None:
    """What is computed along dimensions, as long as before or of another length there."""
    del result
    return call.together(call.over(call.of(t), _dims(call, t)) for t in call.reads())


def reduced(call: Call, result: Tensor) -> Tensor | None:
    """What is summed, or the like, along dimensions."""
    first, *others = call.reads()
    if others:
        return whole(call, result)
    dims = _dims(call, first)
    owners = call.over(call.of(first), dims)
    if owners is None or result.dim() == owners.dim():
        return owners
    return owners.view([size for dim, size in enumerate(owners.shape) if dim not in dims])


def _leading(call: Call, dims: int) -> Tensor | None:
    """(s_1, ..., s_dims): what is computed from all that has the same leading indices."""
    owners = []
    for tensor in call.reads():
        if tensor.dim() < dims or not _NO_ROWS.isdisjoint(call.laden):
            return whole(call, tensor)
        kept = call.over(call.of(tensor), range(dims, tensor.dim()))
        owners.append(None if kept is None else kept.view(kept.shape[:dims]))
    return call.together(owners)


def by_leading(dims: int) -> Rule:
    """Nothing but numbers with the same ``dims`` leading indices meet."""

    def rule(call: Call, result: Tensor) -> Tensor | None:
        owners = _leading(call, dims)
        if owners is None or owners.dim() == 0:
            return owners
        fits = result.dim() >= dims and all(
            b in (1, a) for a, b in zip(result.shape, owners.shape, strict=False)
        )
        return owners.view(*owners.shape, *[1] * (result.dim() - dims)) if fits else whole(call, result)

    return rule


def but_last(dims: int) -> Rule:
    """Nothing but numbers with the same indices meet, except for the last ``dims``."""

    def rule(call: Call, result: Tensor) -> Tensor | None:
        rank = max(t.dim() for t in call.tensors())
        alike = all(t.dim() == rank for name, ts in call.laden.items() for t in ts if name not in _BESIDE)
        if not alike:  # which dimensions go together is told by the last ones then
            return whole(call, result)
        return by_leading(max(0, rank - dims))(call, result)

    return rule


def attention(call: Call, result: Tensor) -> Tensor | None:
    """(B, heads, positions, ...) by record and head; by record if there are fewer heads of keys."""
    if call.place > 1 and "grad_out" not in call.args:
        return None  # states of random numbers
    if any(t.dim() < 3 for t in call.reads()):
        return whole(call, result)  # a mask for all records, of positions alone
    heads = {call[name].shape[1] for name in ("query", "key", "value")}
    return by_leading(2 if len(heads) == 1 else 1)(call, result)


def _product(call: Call, left: Tensor, right: Tensor) -> Tensor | None:
    """(..., a, k) (..., k, b); vectors are (1, k) and (k, 1)."""
    of_left = call.over(call.of(left), [-1])
    of_right = call.over(call.of(right), [-2 if right.dim() > 1 else -1])
    return call.together([of_left, of_right])


def mm(call: Call, result: Tensor) -> Tensor | None:
    """A product of matrices, or of one in each place of a batch."""
    del result
    return _product(call, call["self"], call["mat2"])


def addmm(call: Call, result: Tensor) -> Tensor | None:
    """A product of matrices, added to a third."""
    del result
    left, right = (call.get(name) for name in ("mat1", "mat2"))
    if left is None:
        left, right = call["batch1"], call["batch2"]
    return call.together([call.of(call["self"]), _product(call, left, right)])


def mv(call: Call, result: Tensor) -> Tensor | None:
    """A matrix times a vector, added to another or not."""
    del result
    matrix, vector = (call["self"], call["vec"]) if "mat" not in call.args else (call["mat"], call["vec"])
    found = call.over(call.of(matrix), [1])
    owners = call.together([None if found is None else found.squeeze(1), call.over(call.of(vector), [0])])
    return call.together([owners, call.of(call["self"])]) if "mat" in call.args else owners


def embedding(call: Call, result: Tensor) -> Tensor | None:
    """Rows of a table, looked up by number."""
    del result
    numbers = call.of(call["indices"])
    table = call.over(call.of(call["weight"]), [0])
    return call.together(
        [None if numbers is None else numbers[..., None], None if table is None else table[0]]
    )


def first_alone(rule: Rule) -> Rule:
    """Gradients: of the input by the rule; of parameters all meet."""

    def gradients(call: Call, result: Tensor) -> Tensor | None:
        return rule(call, result) if call.place == 0 else whole(call, result)

    return gradients


def layer_norm(call: Call, result: Tensor) -> Tensor | None:
    """Over the last dimensions, as many as are normalised."""
    return but_last(len(call["normalized_shape"]))(call, result)


def rrelu(call: Call, result: Tensor) -> Tensor | None:
    """With random slopes, which are drawn or read in training alone."""
    del result
    drawn = call.get("training") and "grad_output" in call.args
    return call.together(call.of(call.args.get(name)) for name in ("self", "grad_output", *["noise"] * drawn))


def group_norm(call: Call, result: Tensor) -> Tensor | None:
    """By record, if the operation is told that there are as many as rows."""
    rows = len(call["input"])
    return by_leading(1)(call, result) if call["N"] == rows else whole(call, result)


def batch_norm(call: Call, result: Tensor) -> Tensor | None:
    """By channel; with fixed statistics number by number."""
    switches = [call.get(name) for name in ("training", "train", "update") if call.get(name) is not None]
    rows = call.reads()
    if not _NO_ROWS.isdisjoint(call.laden) or (call.place > 0 and "grad_out" in call.args):
        return whole(call, result)
    if not any(switches) and (switches or "no_training" in call.name) and call.place < 1:
        return call.of(result) if call.place < 0 else call.together(call.of(t) for t in rows if t.dim() > 1)
    channels = [call.over(call.of(t), [d for d in range(t.dim()) if d != min(1, t.dim() - 1)]) for t in rows]
    together = call.together(None if one is None else one.reshape(-1) for one in channels)
    if together is None or result.dim() == 1:
        return together
    return together.view(1, -1, *[1] * (result.dim() - 2))


def nll(call: Call, result: Tensor) -> Tensor | None:
    """Losses of each row, classes in dimension 1."""
    of_rows, of_targets = call.over(call.of(call["self"]), [1]), call.of(call["target"])
    known = {"self", "target", "grad_output", "total_weight"}
    if call["reduction"] != 0 or not call.laden.keys() <= known or (of_rows is None and of_targets is None):
        return whole(call, result)
    owners = call.together([None if of_rows is None else of_rows.squeeze(1), of_targets])
    if "grad_output" in call.args:
        owners = call.together([owners, call.of(call["grad_output"])])
        return None if owners is None else owners.unsqueeze(1)
    if result.dim() == 0 and owners is not None and owners.dim() > 0:
        return whole(call, result)  # the total weight
    return owners


def of_classes(call: Call, result: Tensor) -> Tensor | None:
    """Losses of rows of classes."""
    return by_leading(1)(call, result) if call["self"].dim() > 1 else whole(call, result)


def trilinear(call: Call, result: Tensor) -> Tensor | None:
    """A product of three, each with new dimensions, summed over some."""
    del result
    owners = []
    for k in (1, 2, 3):
        one = call.of(call[f"i{k}"])
        for dim in call[f"expand{k}"]:
            one = None if one is None else one.unsqueeze(dim)
        owners.append(one)
    found = call.over(call.together(owners), call["sumdim"])
    return None if found is None else found.squeeze(tuple(call["sumdim"]))


def distances(call: Call, result: Tensor) -> Tensor | None:
    """(..., p, d) and (..., q, d) to (..., p, q)."""
    del result
    right = call.over(call.of(call["x2"]), [-1])
    left = call.over(call.of(call["x1"]), [-1])
    return call.together([left, None if right is None else right.transpose(-1, -2)])


def rnn_layer(call: Call, result: Tensor) -> Tensor | None:
    """Layers of oneDNN over inputs (T, B, d) and states (B, H)."""
    steps = {"input", "output", "grad_output"}
    states = {"hx_", "cx_", "cx_tmp", "hy_", "cy_", "grad_hy", "grad_cy"}
    back = "grad_output" in call.args
    if call.place == 3 and not back:
        return None  # what only its own backward pass reads
    if not call.laden.keys() <= steps | states or (back and 0 < call.place < 5):
        return whole(call, result)  # of weights
    owners = []
    for name in (steps | states) & call.laden.keys():
        tensor = call[name]
        found = call.over(call.of(tensor), [d for d in range(tensor.dim()) if d != tensor.dim() - 2])
        owners.append(None if found is None else found.reshape(-1))
    together = call.together(owners)
    return None if together is None else together[:, None]


def ctc(call: Call, result: Tensor) -> Tensor | None:
    """Records in dimension 1 of the scores (T, B, classes), which come first in each result."""
    scores, targets = call["log_probs"], call["targets"]
    if scores.dim() != 3 or targets.dim() != 2:
        return whole(call, result)
    of_scores = call.over(call.of(scores), [0, 2])
    owners = [None if of_scores is None else of_scores.view(-1), _first(call, targets)]
    owners += [
        _first(call, call[name])
        for name in ("input_lengths", "target_lengths")
        if isinstance(call.args.get(name), Tensor)
    ]
    together = call.together(owners)
    return None if together is None else together.view(-1, *[1] * (result.dim() - 1))


def ctc_backward(call: Call, result: Tensor) -> Tensor | None:
    """The gradient of the scores (T, B, classes)."""
    rows = ("grad", "targets", "neg_log_likelihood", "log_alpha", "input_lengths", "target_lengths")
    if call["targets"].dim() != 2:
        return whole(call, result)
    of_scores = call.over(call.of(call["log_probs"]), [0, 2])
    owners = [None if of_scores is None else of_scores.view(-1)]
    owners += [_first(call, call[name]) for name in rows if isinstance(call.args.get(name), Tensor)]
    together = call.together(owners)
    return None if together is None else together.view(1, -1, 1)


def _first(call: Call, tensor: Tensor) -> Tensor | None:
    owners = call.over(call.of(tensor), range(1, tensor.dim()))
    return None if owners is None else owners.view(-1)
