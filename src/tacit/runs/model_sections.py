"""What may a run file say of its model? Tacit's own, one of the user, or a public one to be tuned."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tacit.errors import InvalidInput, check_in
from tacit.runs.sections import Section

_Count = Annotated[int, Field(ge=1)]
_MODELS = ("name", "factory", "huggingface", "encoder")
BEGAN, FEATURES = "public_model.json", "features"
"""What a run on a public model began from; and in private/, the features of its records."""
_OF_PRETRAINED = ("tune", "architecture", "image_size")

LINEAR = ("linear", "additive")
"""Linear models of a table, without bins for numbers and with them."""
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
    """How a run file writes an argument of what loads public models."""
    key = "[data] sequence_length" if name == "length" else f"[model] {name}"
    return key if value is None else f"{key} = {value}"


class ModelSection(Section):
    """A network of ``tacit.models`` by name, ``factory = "module:function"`` of the user's own, or a public
    model: ``huggingface = "folder"``, or ``encoder = "file"`` for pictures.

    The function gets the shape of one record and the number of outputs, and returns a torch module.  The
    folder holds files as the Hugging Face hub lays them out: config.json, tokenizer.json and
    model.safetensors; a causal language model without the last has random weights.  Nothing is downloaded.
    The file holds weights (.pth, .safetensors) of the ``architecture`` of that name, or a frozen network
    (.pt2, .onnx).  ``image_size`` is the side, in pixels, to which the public model enlarges pictures.

    Of a public model, ``tune`` says what is trained: "head", a linear layer on its frozen features; "lora",
    corrections of low rank beside it; "full", all weights; or "auto", what is expected to do best.
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
    def public_called(self) -> str:
        """The key that names it."""
        return f"[model] {'encoder' if self.huggingface is None else 'huggingface'}"

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Refuse no model or two, or settings that the model does not have."""
        if len(named := [kind for kind in _MODELS if getattr(self, kind) is not None]) != 1:
            got = " and ".join(named) or "none of them"
            raise InvalidInput(f"[model] needs exactly one of {', '.join(_MODELS)}; got {got}.")
        options = ("activation", "temper", "hidden", "groups", "normalise")
        given = [name for name in options if getattr(self, name) is not None]
        public = [name for name in _OF_PRETRAINED if getattr(self, name) is not None]
        if public and self.public is None:
            raise InvalidInput(
                f"[model] {public[0]} is for a public model, huggingface or encoder, and the model is "
                f"{self.name or self.factory}. Leave {public[0]} out."
            )
        if self.architecture is not None and self.encoder is None:
            raise InvalidInput(
                "[model] architecture names the network of the weights in [model] encoder; a folder says it "
                "in config.json. Leave architecture out."
            )
        if self.name is not None:
            known = NETWORKS[check_in("[model] name", self.name, tuple(NETWORKS))]
            if unknown := [name for name in given if name not in known]:
                raise InvalidInput(
                    f"[model] name = {self.name!r} has no option {unknown[0]!r}; it has "
                    f"{', '.join(known) or 'none'}. Remove {unknown[0]}, or take another network."
                )
            return self
        if self.public is not None and self.make_private_ready:
            given.append("make_private_ready")
        whose = f"the model in {self.public}" if self.factory is None else f"the factory {self.factory}"
        where = "Its own files say what it is" if self.factory is None else "Set them inside the function"
        if given:
            raise InvalidInput(
                f"[model] {', '.join(given)} would not reach {whose}: such settings are for models by name. "
                f"{where}."
            )
        return self


class LoraSection(Section):
    """Low-rank adaptation of a public model: of each layer in ``targets``, a correction of this ``rank``.

    The layers are named as in the model, such as "c_attn" of GPT-2.  The correction counts ``alpha / rank``
    times, by default once.  All other weights stay as they are.  ``blocks`` are the numbers of those of the
    model's blocks in which they are corrected, from 0; by default all.
    """

    rank: _Count | None = None
    alpha: _Count | None = None
    targets: list[str] = Field(default_factory=list)
    blocks: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.model_fields_set and self.rank is None:
            raise InvalidInput("[lora] rank is missing: how many directions a correction has, such as 8.")
        if self.rank is not None and not self.targets:
            raise InvalidInput(
                '[lora] targets is missing: the layers that get a correction, such as ["c_attn"] for GPT-2 '
                'and ["q_proj", "v_proj"] for Llama.'
            )
        return self
