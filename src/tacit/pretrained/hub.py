"""Loading of transformers models in float32 from local files, whose weights must be safetensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tacit.errors import InvalidInput, needed
from tacit.pretrained.finding import ModelFolder

transformers = needed("transformers", "transformers", "a model of Hugging Face")


@contextmanager
def said_plainly(where: str, kind: str) -> Iterator[None]:
    """Replace any error of transformers about its files by an :class:`InvalidInput` about the folder."""
    try:
        yield
    except InvalidInput:
        raise
    except Exception as problem:  # noqa: BLE001  # transformers may raise any exception
        reason = " ".join(str(problem).split())[:300].rstrip(".")
        raise InvalidInput(
            f"{where} cannot be loaded as {kind}: {type(problem).__name__}: {reason}. Save model and config "
            "together by save_pretrained of transformers."
        ) from None


def config_of(folder: ModelFolder, where: str) -> Any:
    """Return the configuration of the model in a folder."""
    with said_plainly(where, "a model of transformers"):
        return transformers.AutoConfig.from_pretrained(folder.path, local_files_only=True)


def load_network(kind: Any, folder: ModelFolder, config: Any, where: str, what: str) -> tuple[Any, list[str]]:
    """Return the model in evaluation mode, and the names of weights that are missing or of another shape.

    Args:
        kind: the class of transformers that loads the model.
        folder: a folder with weights.
        config: the result of :func:`config_of`.
        where: the description of the folder, for errors.
        what: the expected kind of model, for errors.
    """
    with said_plainly(where, what), without_bars():
        network, report = kind.from_pretrained(
            folder.path,
            config=config,
            local_files_only=True,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
        )
    return network, sorted(map(str, {*report["missing_keys"], *report["mismatched_keys"]}))


def refuse_lacking(lacking: list[str], where: str) -> None:
    """Refuse files that lack weights, which transformers would replace by random ones."""
    if lacking:
        more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        raise InvalidInput(
            f"{where}: the weights do not fit config.json. Missing or different in shape: "
            f"{', '.join(lacking[:3])}{more}. Take the weights and config.json of the same model."
        )


@contextmanager
def without_bars() -> Iterator[None]:
    """Hide the progress bars of transformers, which would mix with Tacit's."""
    bars = transformers.utils.logging
    visible = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if visible:
            bars.enable_progress_bar()
