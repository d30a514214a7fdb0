"""The sections of a run file about its model: built in, the user's own, or public and fine-tuned."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tacit.errors import InvalidInput, check_in
from tacit.runs.sections import Section

_Count = Annotated[int, Field(ge=1)]
_MODELS = ("name", "factory", "huggingface", "encoder")
BEGAN, FEATURES = "public_model.json", "features"
"""The file with the digest of a run's public model, and the folder in private/ for cached features."""
_OF_PRETRAINED = ("tune", "architecture", "image_size")

LINEAR = ("linear", "additive")
"""Linear models of a table, without and with bins for numbers."""
NETWORKS: dict[str, tuple[str, ...]] = {
    "linear": (),
    "additive": (),
    "logistic": ("normalise",),
    "mlp": ("hidden", "activation", "temper"),
    "papernot-mnist-cnn": ("activation", "temper"),
    "papernot-cifar-cnn": ("activation", "temper"),
    "scattering-linear": ("groups",),
    "scattering-cnn": ("groups", "activation", "temper"),
    "window": ("hidden",),
    "abadi-mnist-mlp": (),
    "abadi-cifar-cnn": (),
}
"""The networks that :func:`tacit.models.build` knows, and the options of each."""


def in_run_file(name: str, value: str | None) -> str:
    """Return the run file's key for an argument of the functions that load public models."""
    key = "[data] sequence_length" if name == "length" else f"[model] {name}"
    return key if value is None else f"{key} = {value}"


class ModelSection(Section):
    """The model of a run, named by exactly one of four keys.

    - ``name``: a network of ``tacit.models``.
    - ``factory``: "module:function", the user's own function.  It gets the shape of one record and the number
      of outputs, and returns a torch module.
    - ``huggingface``: a folder in the layout of the Hugging Face hub, with config.json, tokenizer.json and
      model.safetensors.  Without the last file, a causal language model starts from random weights.
    - ``encoder``: a file with a network for pictures: either weights (.pth, .safetensors) of the named
      ``architecture``, or a frozen network (.pt2, .onnx).

    The last two are public models.  Nothing is downloaded.  ``image_size`` is the side, in pixels, to which
    a public model enlarges pictures.  ``tune`` chooses what is trained: "head", a linear layer on frozen
    features; "lora", low-rank corrections and the head; "full", all weights; or "auto", the choice that is
    expected to do best.
    """

    name: str | None = None
    factory: str | None = None
    huggingface: str | None = None
    encoder: str | None = None
    architecture: str | None = None
    image_size: Annotated[int, Field(ge=8)] | None = None
    tune: Literal["head", "lora", "full", "auto"] | None = None
    activation: str | None = None
    temper: list[float] | None = None
    hidden: list[int] | None = None
    groups: int | None = None
    normalise: bool | None = None
    make_private_ready: bool = False

    @property
    def public(self) -> str | None:
        """The folder or file of a public model."""
        return self.huggingface or self.encoder

    @property
    def public_key(self) -> str:
        """The key that names the public model."""
        return f"[model] {'encoder' if self.huggingface is None else 'huggingface'}"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(sources := [kind for kind in _MODELS if getattr(self, kind) is not None]) != 1:
            got = " and ".join(sources) or "none of them"
            raise InvalidInput(f"[model] needs exactly one of {', '.join(_MODELS)}; got {got}.")
        options = ("activation", "temper", "hidden", "groups", "normalise")
        settings = [name for name in options if getattr(self, name) is not None]
        public = [name for name in _OF_PRETRAINED if getattr(self, name) is not None]
        if public and self.public is None:
            raise InvalidInput(
                f"[model] {public[0]} needs a public model, huggingface or encoder; the model is "
                f"{self.name or self.factory}. Leave {public[0]} out."
            )
        if self.architecture is not None and self.encoder is None:
            raise InvalidInput(
                "[model] architecture needs [model] encoder: it names the network of a file of weights. "
                "The folder of a model names it in config.json. Leave architecture out."
            )
        if self.name is not None:
            allowed = NETWORKS[check_in("[model] name", self.name, tuple(NETWORKS))]
            if unknown := [name for name in settings if name not in allowed]:
                raise InvalidInput(
                    f"[model] name = {self.name!r} has no option {unknown[0]!r}; it has "
                    f"{', '.join(allowed) or 'none'}. Remove {unknown[0]}, or take another network."
                )
            return self
        if self.public is not None and self.make_private_ready:
            settings.append("make_private_ready")
        target = f"the model in {self.public}" if self.factory is None else f"the factory {self.factory}"
        where = "Its own files say what it is" if self.factory is None else "Set them inside the function"
        if settings:
            raise InvalidInput(
                f"[model] {', '.join(settings)} would not reach {target}: Tacit sets them only in its own "
                f"networks. {where}."
            )
        return self


class LoraSection(Section):
    """Low-rank adaptation of a public model: a correction of this ``rank`` for each layer in ``targets``.

    The layers are named as in the model, such as "c_attn" in GPT-2.  The correction is multiplied by
    ``alpha / rank``, by default 1.  All other weights are frozen.  ``blocks`` are the numbers, from 0, of the
    model's blocks to adapt; by default all.
    """

    rank: _Count | None = None
    alpha: _Count | None = None
    targets: list[str] = Field(default_factory=list)
    blocks: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.model_fields_set and self.rank is None:
            raise InvalidInput("[lora] rank is missing: the rank of the correction of a layer, such as 8.")
        if self.rank is not None and not self.targets:
            raise InvalidInput(
                '[lora] targets is missing: the layers to correct, such as ["c_attn"] for GPT-2 and '
                '["q_proj", "v_proj"] for Llama.'
            )
        return self
