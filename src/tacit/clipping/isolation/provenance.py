"""What is computed from which record: followed through every operation of a forward and a backward pass.

Letters: n records of K views; B = n K rows of the batch.

Each number that a pass computes has a provenance: the record that it comes from, none (``FREE``), or several.
Operations of PyTorch hand it on by the rules of ``isolation/op_table.py``; one without a rule is
taken to mix all that it reads.  Rules go by shapes and dimensions, and by the numbers in a tensor only where
no record is in these.  So what they say of one batch holds for every batch that goes the same way, whatever
is in it; that is what trying a model out on some records cannot show.

Owners lie beside a tensor's memory, not beside the tensor: views need no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar, final

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._ops import HigherOrderOperator
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tacit.clipping.isolation.call import FREE, Call
from tacit.clipping.isolation.op_table import owners_after

__all__ = ["EARLIER", "Provenance"]

EARLIER = "tensors of an earlier batch that were kept"

_T = TypeVar("_T")
_MANY = 256
"""Memories that are known, from which on those are forgotten that are gone."""


@final
class Provenance(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Owners of what is computed in its scope from the rows of ``batch``, ``views`` of them to a record."""

    supports_higher_order_operators = True

    def __init__(self, batch: Sequence[Tensor], views: int, earlier: Provenance | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._views, self._n = views, len(batch[0]) // views
        self._records = torch.arange(self._n, dtype=torch.int32)
        self._rows = self._records.repeat_interleave(views)
        self._beside: dict[int, tuple[StorageWeakRef, Tensor, int]] = {}
        """Of each memory in which records are: itself, owners (int32), and bytes to each of them."""
        self._limit = _MANY
        self._seed = torch.initial_seed()
        self._mixers: list[str] = []  # what the owners n, n + 1, ... stand for: operations that mix records
        self._paused = False
        self._on_trace = self._only_checked = False
        self._lost: str | None = None
        self.follows_content = False
        """Whether a shape, or something that Python reads, depends on what is in the records."""
        if earlier is not None:
            self._take_over(earlier)
        for tensor in batch:
            self.mark(tensor)

    def _take_over(self, earlier: Provenance) -> None:
        """Know tensors again in which records of an earlier batch were kept: they mix all records."""
        for key, (weak, beside, size) in earlier._beside.items():
            if not weak.expired() and bool((beside != FREE).any()):  # type: ignore[no-untyped-call]
                kept = torch.where(beside == FREE, FREE, self._mixer(EARLIER))
                self._beside[key] = weak, kept.to(torch.int32), size

    def forget(self, tensors: Iterable[Tensor]) -> None:
        """No record is in these any more: they were put back as they were."""
        for tensor in tensors:
            if _has_memory(tensor):
                self._beside.pop(tensor.untyped_storage()._cdata, None)

    def mark(self, tensor: Tensor, views: int | None = None) -> None:
        """Let the record of each row of ``tensor`` own it; rows that are one memory are the same for all."""
        if tensor.stride(0) or len(tensor) == 1:
            self.own(tensor, self._by_row(tensor, views))

    def why_not_by_row(self, tensor: Tensor, views: int | None = None) -> str | None:
        """Return why not each row of ``tensor`` comes from its own record alone; None if it does."""
        if self._lost is not None:
            return f"records are in {self._lost}"
        owners = self.owners(tensor)
        if owners is None or bool((owners == FREE).all()):
            return None
        views = self._views if views is None else views
        if len(tensor) != self._n * views:
            return "the rows of the batch are not the first dimension"
        strange = owners[(owners != self._by_row(tensor, views)) & (owners != FREE)]
        if strange.numel() == 0:
            return None
        return self._met(strange) or "the rows of the batch are put in another order"

    def why_not_one(self, tensor: Tensor) -> str | None:
        """Return what mixed the records whose numbers ``tensor`` holds; None if nothing did."""
        owners = self.owners(tensor)
        return None if owners is None else self._met(owners)

    def _met(self, owners: Tensor) -> str | None:
        most = int(owners.max())
        return f"records mix in {self._mixers[most - self._n]}" if most >= self._n else None

    def is_owned_by(self, tensor: Tensor, owners: Tensor | None) -> bool:
        """Whether ``tensor`` comes from those records alone; both may be none."""
        now = self.owners(tensor)
        if now is None or owners is None:
            return not any(bool((one != FREE).any()) for one in (now, owners) if one is not None)
        return torch.equal(now, owners)

    def lose(self, tensors: Iterable[Tensor], to: str) -> None:
        """Say to what the numbers in ``tensors`` go where they cannot be followed, if records are in them."""
        if any(map(self.is_laden, tensors)):
            self._lost, self.follows_content = to, True

    def is_laden(self, tensor: Tensor) -> bool:
        """Whether some record's numbers are in ``tensor``, or may be, as in a transform of functions."""
        if is_functorch_wrapped_tensor(tensor):
            return True
        owners = self.owners(tensor)
        return owners is not None and bool((owners != FREE).any())

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Follow nothing: in rules of the engine, which keep rows apart."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    @contextmanager
    def read_on_trace(self, *, only_checked: bool = False) -> Iterator[None]:
        """What is read out of a tensor in here decides the trace; or an error alone, if ``only_checked``."""
        self._on_trace, self._only_checked = True, only_checked
        try:
            yield
        finally:
            self._on_trace = self._only_checked = False

    def owners(self, tensor: Tensor) -> Tensor | None:
        """Owners, of the shape of ``tensor``; None if no record is in its memory."""
        known = self._beside.get(tensor.untyped_storage()._cdata) if _has_memory(tensor) else None
        if known is None or tensor.numel() == 0:
            return None
        _, beside, size = known
        if size != _bytes(tensor) or _end(tensor) > len(beside):  # seen as another type, or made larger
            owner = int(beside.max())
            if bool(((beside != owner) & (beside != FREE)).any()):
                owner = self._mixer("memory of two kinds")
            return torch.full(tensor.shape, owner, dtype=torch.int32, device=tensor.device)
        found = _part(beside, tensor)
        if not tensor.is_complex():
            return found
        real, imaginary = found.unbind(-1)
        meet = (real != imaginary) & (torch.minimum(real, imaginary) != FREE)
        most = torch.maximum(real, imaginary)
        return most.where(~meet, self._mixer("complex numbers")) if bool(meet.any()) else most

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Carry out an operation, and note whose its results are."""
        kwargs = kwargs or {}
        if self._paused:
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunction():  # the recorder would take this for the model's doing
            if isinstance(func, HigherOrderOperator):
                self._lost = f"what {func} does"
                return func(*args, **kwargs)
            call = self._or_lost(func, partial(self._call, func, types, args, kwargs))
            found = func(*args, **kwargs)
            if call is not None and torch.Tag.inplace_view not in func.tags:
                self._or_lost(func, partial(self._note, call, found))
            return found

    def _or_lost(self, func: Any, step: Callable[[], _T]) -> _T | None:
        """Kinds of tensors of which PyTorch does not say what memory they have cannot be followed."""
        try:
            return step()
        except (RuntimeError, NotImplementedError):
            self._lost = f"a tensor of a kind of its own, in {func}"
            return None

    def _call(self, func: Any, types: Sequence[type], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if not all(map(_is_plain, types)):  # carried out by themselves, out of sight
            self._lost = "a tensor of a kind of its own"
        read = {id(t): self.owners(t) for t in tensors}
        memories = {t.untyped_storage()._cdata for t in tensors if _has_memory(t)}
        call = Call(func, args, kwargs, read, memories, self._rows, self._n, self._mixer, self._seed)
        if call.laden and (why := call.tells()) is not None:
            self.follows_content |= not self._only_checked
            if not self._on_trace:
                self._lost = why
        return call

    def _note(self, call: Call, found: Any) -> None:
        """Keep whose the results are; where that cannot be kept, records are lost in them."""
        written = call.written()
        changed = {id(t) for t in written}
        returned = [t for t in pytree.tree_leaves(found) if isinstance(t, Tensor) and id(t) not in changed]
        for call.place, tensor in [*((-1, t) for t in written), *enumerate(returned)]:
            if not _has_memory(tensor):
                self._lost = f"a sparse tensor, of {call.name}" if call.laden else self._lost
            elif id(tensor) in changed or tensor.untyped_storage()._cdata not in call.memories:
                self.own(tensor, owners_after(call, tensor))

    def _mixer(self, name: str) -> int:
        if name not in self._mixers:
            self._mixers.append(name)
        return self._n + self._mixers.index(name)

    def _by_row(self, tensor: Tensor, views: int | None) -> Tensor:
        """(B, 1, ...): the record of each row."""
        rows = self._rows if views is None else self._records.repeat_interleave(views)
        return rows.to(tensor.device).view(-1, *[1] * (tensor.dim() - 1))

    def own(self, tensor: Tensor, owners: Tensor | None) -> None:
        """Set the provenance of the numbers of ``tensor``; of its shape, None for no record."""
        storage, size = tensor.untyped_storage(), _bytes(tensor)
        known = self._beside.get(storage._cdata)
        if (owners is None and known is None) or tensor.numel() == 0:
            return
        if owners is None and tensor.numel() * size == storage.nbytes():
            del self._beside[storage._cdata]
            return
        free = torch.tensor(FREE, dtype=torch.int32, device=tensor.device)
        owners, cells = free if owners is None else owners, -(-storage.nbytes() // size)
        if known is not None and known[2] != size:  # seen as another type
            known[1].fill_(self._mixer("memory of two kinds"))
            return
        if known is None or len(known[1]) < cells:
            beside = free.repeat(cells)
            if known is not None:
                beside[: len(known[1])] = known[1]
            weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            self._beside[storage._cdata] = weak, beside, size
            self._forget()
        for dim, (length, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
            if length > 1 and stride == 0:  # one memory
                owners = self._one_of(owners.expand(tensor.shape), dim)
                tensor = tensor.narrow(dim, 0, 1)
        part = _part(self._beside[storage._cdata][1], tensor)
        part.copy_(owners[..., None] if tensor.is_complex() else owners)

    def _one_of(self, owners: Tensor, dim: int) -> Tensor:
        """The owner of what is one number along a dimension, which keeps the size 1."""
        most = owners.amax(dim, keepdim=True)
        meet = ((owners != most) & (owners != FREE)).any(dim, keepdim=True)
        return most.where(~meet, self._mixer("memory of several numbers")) if bool(meet.any()) else most

    def _forget(self) -> None:
        if len(self._beside) > self._limit:
            there = [key for key, (weak, *_) in self._beside.items() if not weak.expired()]  # type: ignore[no-untyped-call]
            self._beside = {key: self._beside[key] for key in there}
            self._limit = max(_MANY, 2 * len(self._beside))


def _is_plain(kind: type) -> bool:
    """Whether PyTorch itself carries out operations on tensors of this kind."""
    return bool(getattr(kind, "__torch_dispatch__", None) == Tensor.__torch_dispatch__)


def _has_memory(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and not (tensor.is_quantized or tensor.is_nested)


def _bytes(tensor: Tensor) -> int:
    """Of a number; complex ones are two."""
    return tensor.element_size() // (2 if tensor.is_complex() else 1)


def _end(tensor: Tensor) -> int:
    """How many numbers of its memory ``tensor`` spans, from the first on."""
    steps = (int(stride * (size - 1)) for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    return (int(tensor.storage_offset()) + sum(steps) + 1) * (2 if tensor.is_complex() else 1)


def _part(beside: Tensor, tensor: Tensor) -> Tensor:
    """What lies beside ``tensor``; of complex numbers, (..., 2)."""
    if not tensor.is_complex():
        return beside.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    strides = [2 * stride for stride in tensor.stride()]
    return beside.as_strided((*tensor.shape, 2), (*strides, 1), 2 * tensor.storage_offset())
