"""How are the weights of a sharded run stored? By torch.distributed.checkpoint, in a folder beside its state.

Each rank writes its own shards.  The folder has a name of its own for each save, which the session's state
names: a crash leaves the old state with its folder.

**Guarantee**

* The folder holds released values alone: weights, and the optimizer's state, which is a function of noisy
  gradients.  The key of the noise is in the session's state.
* Reading executes nothing in it: only the classes that describe tensors are made of its index.
"""

from __future__ import annotations

import pickle
import secrets
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from tacit.errors import InvalidInput
from tacit.files import flush_folder

_METADATA = "torch.distributed.checkpoint.metadata"
_DESCRIBING = frozenset(
    {
        *((_METADATA, name) for name in ("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties")),
        *((_METADATA, name) for name in ("ChunkStorageMetadata", "TensorStorageMetadata")),
        (_METADATA, "_MEM_FORMAT_ENCODING"),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        ("torch.serialization", "_get_layout"),
        ("torch", "Size"),
        ("pathlib", "PosixPath"),
        ("pathlib", "WindowsPath"),
    }
)
"""What an index of tensors is made of; of objects that are no tensors nothing is read."""
_DAMAGED = (OSError, RuntimeError, ValueError, LookupError, EOFError, pickle.UnpicklingError)
_TYPES = frozenset(name for name, value in vars(torch).items() if isinstance(value, torch.dtype))


def new_folder(path: Path) -> str:
    """Make a folder beside ``path``, readable by its owner alone, and return its name."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = path.parent / f"{path.name}.shards-{secrets.token_hex(8)}"
    folder.mkdir(mode=0o700)
    return folder.name


def write_shards(folder: Path, tensors: Mapping[str, Tensor], group: dist.ProcessGroup | None) -> None:
    """All ranks together write ``tensors``; of one that each has, the first writes it.

    Raises:
        OSError: a rank could not write.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    try:
        with _quiet():
            save(dict(tensors), storage_writer=FileSystemWriter(folder), process_group=group)
    except CheckpointException as problem:
        rank, failure = next(iter(problem.failures.items()))
        raise OSError(f"process {rank} cannot write the weights to {folder}: {failure[0]}") from problem
    flush_folder(folder)
    flush_folder(folder.parent)


def read_shards(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """``tensors`` become what was written under their names; of a sharded one, what this rank has of it.

    Raises:
        InvalidInput: the folder is not there, or damaged.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_loader import load

    try:
        with _quiet():
            load(dict(tensors), storage_reader=_reader(folder), no_dist=True)
    except (CheckpointException, *_DAMAGED) as problem:
        raise InvalidInput(
            f"{folder}, which holds the weights of the resume state beside it, is not there as a whole, or "
            "is damaged. Restore the folder from a copy together with the state, or start a new run."
        ) from problem


def remove_others(path: Path, folder: str) -> None:
    """Remove the folders of earlier saves to ``path``."""
    for other in path.parent.iterdir():
        if other.name.startswith(f"{path.name}.shards-") and other.name != folder:
            shutil.rmtree(other, ignore_errors=True)


def _reader(folder: Path) -> Any:
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import Metadata

    class Reader(FileSystemReader):
        """Reads the index without executing what is in it, as torch's own would."""

        def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
            with (folder / ".metadata").open("rb") as file:
                metadata: Metadata = _Index(file).load()
            return metadata

    return Reader(folder)


class _Index(pickle.Unpickler):
    """Makes objects that describe tensors, and none of other classes."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _DESCRIBING or (module == "torch" and name in _TYPES):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} describes no tensor")


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what torch says of itself, such as that a process reads without the others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
