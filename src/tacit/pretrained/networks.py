"""Public networks for texts or images from local files, without their heads.

Letters: n texts or images; at most L tokens per text; T positions of a batch, T <= L; c channels and h by w
pixels; s by s pixels after scaling; d features.
"""

from __future__ import annotations

import importlib
import importlib.util
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from tacit.errors import InvalidInput, check_integer, needed, reason_of, without_values
from tacit.pretrained.finding import (
    CONFIG,
    INDEX,
    TOKENIZER_FILES,
    USUAL_SIZE,
    ModelFolder,
    file_digest,
)
from tacit.pretrained.model import BATCH, Pretrained, files_in, parameters_of


def _transformers() -> Any:  # a slow import, which weights of torchvision do not need
    return needed("transformers", "transformers", "a model of Hugging Face")


@contextmanager
def said_plainly(where: str, kind: str) -> Iterator[None]:
    """Raise errors of transformers about its files as :class:`InvalidInput` about the folder."""
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
        return _transformers().AutoConfig.from_pretrained(folder.path, local_files_only=True)


def load_network(kind: Any, folder: ModelFolder, config: Any, where: str, what: str) -> tuple[Any, list[str]]:
    """Return the model in evaluation mode, and the names of weights that are missing or of another shape."""
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
            f"{', '.join(lacking[:3])}{more}. Use the weights and config.json of the same model."
        )


@contextmanager
def without_bars() -> Iterator[None]:
    """Hide the progress bars of transformers, which would mix with Tacit's."""
    bars = _transformers().utils.logging
    visible = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if visible:
            bars.enable_progress_bar()


USUAL_LENGTH = 256
"""The default number of tokens read from each text, which is about 200 words."""
POOLING = "1_Pooling/config.json"
"""The file in which a sentence transformer declares its pooling."""
END = -1.0
"""The value that fills a row of tokens after the end of its text."""
_AT_ONCE = 1_000
_FIRST_TOKEN, _MEAN, _LAST = "first", "mean", "last"


class Encoded(NamedTuple):
    """Texts as tokens."""

    tokens: Tensor
    """Tokens (n, L)."""
    cut: int
    """The number of texts truncated to L tokens. It is as sensitive as the texts."""


@final
class PretrainedText(Pretrained):
    """A transformers model that maps rows of tokens to features.

    The features are the mean of the last hidden states over the tokens of a text; for a causal model, the
    last token's state, which alone depends on the whole text. A pooling file in the folder takes precedence.

    Attributes:
        length: L, the number of tokens read from each text.
        pooling: "mean", "first" or "last".
    """

    def __init__(self, folder: ModelFolder, length: int | None, label: str) -> None:
        """Load the model in a folder; see :func:`tacit.pretrained.load_pretrained`."""
        body = _load(folder, label)
        self.length = _length(body, folder, length)
        # Test whether no state depends on later tokens, as a configuration need not say so.
        tokens = torch.zeros((2, 4), dtype=torch.int64)
        tokens[1, -1] = 1
        with torch.no_grad():
            states = _states(body, tokens, torch.ones_like(tokens))
        causal = bool((states[0, :-1] - states[1, :-1]).norm() <= 1e-5 * states[0, :-1].norm())
        self.pooling = _pooling(folder) or (_LAST if causal else _MEAN)
        if causal and self.pooling == _FIRST_TOKEN:
            raise InvalidInput(
                f"{folder.path / POOLING} takes a text's features from the first token, which in a causal "
                "model ignores all later tokens. Remove the file."
            )
        files = files_in(folder.path, (CONFIG, INDEX, *TOKENIZER_FILES, POOLING))
        super().__init__(
            body,
            features=int(body.config.hidden_size),
            name=f"{body.config.model_type} of transformers, {parameters_of(body):,} parameters",
            decides={
                "weights": folder.weights_digest(),
                "config": file_digest(folder.path / CONFIG),
                "tokenizer": folder.tokenizer_digest(),
                "length": self.length,
                "pooling": self.pooling,
            },
            files=files | {file.name: file for file in folder.weight_files},
            settings={"length": self.length},
        )
        self._padding, self._vocabulary = _padding(body.config), int(body.config.vocab_size)
        self._tokenizer = _tokenizer(folder, self.length, self._vocabulary)

    def tokens(self, texts: Sequence[str]) -> Tensor:
        """Return (n, L) token numbers as float32, with -1 after the end of a text."""
        return self.encode(texts).tokens

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the tokens as :meth:`tokens` does, and the number of truncated texts."""
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise InvalidInput(
                    f"texts: row {row} (from 0) is {type(text).__name__}, not a string. Remove such rows, or "
                    'use "" for a missing text.'
                )
        tokens = torch.full((len(texts), self.length), END)
        cut = 0
        for start in range(0, len(texts), _AT_ONCE):
            for row, one in enumerate(self._encoded(list(texts[start : start + _AT_ONCE])), start):
                cut += bool(one.overflowing)
                tokens[row, : len(one.ids)] = torch.tensor(one.ids, dtype=torch.float32)
        return Encoded(tokens, cut)

    def made_up(self, example: Tensor) -> Tensor:
        """Return eight rows of random tokens of increasing length; the first row is empty."""
        places, generator = example.shape[1], torch.Generator().manual_seed(0)
        rows = torch.randint(self._vocabulary, (8, places), generator=generator).to(example)
        ends = torch.linspace(0, places, 8).round().to(example.device)
        return rows.where(torch.arange(places, device=example.device) < ends.unsqueeze(1), END)

    def _encoded(self, texts: list[str]) -> list[Any]:
        try:
            return list(self._tokenizer.encode_batch(texts))
        except Exception as problem:  # noqa: BLE001  # its message would contain a record's text
            raise InvalidInput(
                f"the tokenizer fails on a text ({without_values(problem)}). It may lack a token for unknown "
                "words; then choose another model."
            ) from None

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (n, d) features of (n, T) tokens."""
        counts = inputs >= 0
        mask = torch.cat([torch.ones_like(counts[:, :1]), counts[:, 1:]], dim=1)  # empty texts have features
        tokens = torch.where(counts, inputs, float(self._padding)).long()
        return pooled(_states(self.body, tokens, mask), mask, self.pooling)

    def embed(self, inputs: Tensor) -> Tensor:
        """Return (n, d) features without gradients; texts of similar length share a batch."""
        lengths = (inputs >= 0).sum(dim=1).clamp(min=1)
        order = lengths.argsort(stable=True)
        features = torch.empty((len(inputs), self.features), device=inputs.device)
        with torch.inference_mode():
            for rows in torch.split(order, BATCH):
                longest = int(lengths[rows].max())
                features[rows] = self(inputs[rows, :longest].to(self.device)).to(features)
        return features


def pooled(states: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """Pool (n, T, d) states at the positions in ``mask`` (n, T) into (n, d)."""
    if pooling == _FIRST_TOKEN:
        return states[:, 0]
    if pooling == _LAST:
        places = torch.arange(mask.shape[1], device=mask.device)
        mask = mask & (places == (places * mask).amax(dim=1, keepdim=True))
    weights = mask.to(states.dtype)
    weights = weights / weights.sum(dim=1, keepdim=True)
    return (states * weights.unsqueeze(-1)).sum(dim=1)


def _states(body: nn.Module, tokens: Tensor, mask: Tensor) -> Tensor:
    states: Tensor = body(input_ids=tokens, attention_mask=mask.long()).last_hidden_state
    return states


def _load(folder: ModelFolder, label: str) -> Any:
    where = f'{label} = "{folder.path}"'
    config = config_of(folder, where)
    if getattr(config, "is_encoder_decoder", False):
        raise InvalidInput(
            f"{where}: {config.model_type} has both an encoder and a decoder. Use a model with one of the "
            "two, such as BERT, a sentence transformer, GPT-2 or Llama."
        )
    body, lacking = load_network(_transformers().AutoModel, folder, config, where, "a model of text")
    if getattr(body, "pooler", None) is not None:
        body.pooler = None  # trained for a pretraining task; the features do not use it
        lacking = [name for name in lacking if not name.startswith("pooler.")]
    refuse_lacking(lacking, where)
    if body.get_input_embeddings() is None or not hasattr(body.config, "hidden_size"):
        raise InvalidInput(f"{where} takes no tokens. Use a text model, such as BERT or GPT-2.")
    body.config.use_cache = False  # a cache of earlier tokens, for generating text
    return body


def _length(body: Any, folder: ModelFolder, length: int | None) -> int:
    most = getattr(body.config, "max_position_embeddings", None)
    most = most if isinstance(most, int) and most > 0 else None  # XLNet's relative ones have no limit
    first = getattr(
        getattr(getattr(body, "embeddings", None), "position_embeddings", None), "padding_idx", None
    )
    if most is not None and first is not None:  # RoBERTa numbers positions from that of padding, plus 1
        most -= first + 1
    if length is None:
        return USUAL_LENGTH if most is None else min(USUAL_LENGTH, most)
    why = "" if most is None else f"The model in {folder.path} reads at most {most} tokens."
    return check_integer("length", length, low=1, high=most, why=why)


def _pooling(folder: ModelFolder) -> str | None:
    if not (folder.path / POOLING).is_file():
        return None
    modes = {
        name for name, enabled in folder.read(POOLING).items() if name.startswith("pooling_mode") and enabled
    }
    by_mode = {
        "pooling_mode_cls_token": _FIRST_TOKEN,
        "pooling_mode_mean_tokens": _MEAN,
        "pooling_mode_lasttoken": _LAST,
    }
    if len(modes) != 1 or not modes <= by_mode.keys():
        raise InvalidInput(
            f"{folder.path / POOLING} asks for {' and '.join(sorted(modes)) or 'no pooling'}, but Tacit only "
            f"supports {', '.join(by_mode)}. Use another model, or remove the folder 1_Pooling to use the "
            "mean of the tokens (in a causal model, the last token)."
        )
    return by_mode[modes.pop()]


def _padding(config: Any) -> int:
    """Return the token that fills masked positions; RoBERTa derives positions from it."""
    for name in ("pad_token_id", "eos_token_id"):
        token = getattr(config, name, None)
        if isinstance(token, int) and 0 <= token < config.vocab_size:
            return token
    return 0


def _tokenizer(folder: ModelFolder, length: int, vocabulary: int) -> Any:
    tokenizer = folder.tokenizer(vocabulary)
    least = tokenizer.num_special_tokens_to_add(is_pair=False)
    check_integer("length", length, low=least + 1, why=f"The tokenizer adds {least} tokens to each text.")
    tokenizer.enable_truncation(length)
    return tokenizer


MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""The channel means and standard deviations of ImageNet."""


@final
class PretrainedPictures(Pretrained):
    """A network that maps images of any size, with values in [0, 1], to features.

    Grey images are repeated in three channels. All images are scaled to ``image_size`` and normalised as in
    the network's training.

    Attributes:
        image_size: s, the side in pixels of the scaled images.
    """

    def __init__(
        self,
        body: nn.Module,
        *,
        what: str,
        image_size: int,
        mean: Sequence[float] = MEAN,
        std: Sequence[float] = STD,
        decides: Mapping[str, Any],
        files: Mapping[str, Path],
        settings: Mapping[str, Any],
    ) -> None:
        """Wrap a body as a model; see :func:`tacit.pretrained.load_pretrained`."""
        self.image_size = check_integer("image_size", image_size, low=1)
        looks = {"image_size": self.image_size, "mean": list(mean), "std": list(std)}
        super().__init__(
            body,
            features=_features(body, self.image_size, what),
            name=f"{what}, {parameters_of(body):,} parameters",
            decides={**decides, **looks},
            files=files,
            settings={**settings, "image_size": self.image_size},
        )
        self.register_buffer("_mean", torch.tensor(mean).reshape(-1, 1, 1), persistent=False)
        self.register_buffer("_std", torch.tensor(std).reshape(-1, 1, 1), persistent=False)
        self._mean: Tensor
        self._std: Tensor

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (n, d) features of (n, c, h, w) images; c is 1 or 3."""
        if inputs.dim() != 4 or inputs.shape[1] not in (1, 3):
            raise InvalidInput(
                f"images must have shape (n, c, height, width), with c = 3, or 1 for grey; got "
                f"{tuple(inputs.shape)}. Move the colour axis to the second place."
            )
        pixels = scaled(inputs.float(), self.image_size).expand(-1, 3, -1, -1)
        return _pooled(self.body((pixels - self._mean) / self._std))


def scaled(pictures: Tensor, size: int) -> Tensor:
    """Scale images to ``size`` by ``size`` pixels.

    The result equals that of bilinear ``interpolate`` with antialias. It is computed by two matrix products,
    which work in every export format and under vmap.
    """
    high, wide = (_weights(side, size, pictures) for side in pictures.shape[-2:])
    return high @ pictures @ wide.T


def _weights(source: int, target: int, like: Tensor) -> Tensor:
    """Return the weights (target, source) of the pixels of an image row in the scaled row."""
    ratio = source / target
    places = (torch.arange(target, device=like.device).to(like.dtype) + 0.5) * ratio - 0.5
    pixels = torch.arange(source, device=like.device).to(like.dtype)
    weights = (1 - (pixels - places.unsqueeze(1)).abs() / max(ratio, 1.0)).clamp(min=0)
    return weights / weights.sum(dim=1, keepdim=True)


def _pooled(output: Any) -> Tensor:
    """Return (n, d) features from features, a last feature map, or an output of transformers."""
    if not isinstance(output, Tensor):
        pooler = getattr(output, "pooler_output", None)
        output = output.last_hidden_state if pooler is None else pooler.flatten(1)
    features: Tensor = output
    if features.dim() == 4:
        return features.mean(dim=(2, 3))
    return features[:, 0] if features.dim() == 3 else features  # the first token represents the whole image


def _features(body: nn.Module, size: int, kind: str) -> int:
    """Return d, which one black image shows."""
    try:
        with torch.no_grad():
            features = _pooled(body(torch.zeros((1, 3, size, size))))
    except Exception as problem:  # noqa: BLE001  # a network may raise any exception for a wrong size
        reason = " ".join(str(problem).split())[:300].rstrip(".")
        raise InvalidInput(
            f"{kind} fails on images of {size} by {size} pixels: {type(problem).__name__}: {reason}. Set "
            "image_size to the size used in its training, or choose an image model."
        ) from None
    if features.dim() != 2:
        raise InvalidInput(f"{kind} must return features (n, d); it returned shape {tuple(features.shape)}.")
    return int(features.shape[1])


_BLOCKS = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip
"""Table 2 of the paper: expansion factor, channels, number of blocks, and stride of the first block."""
_FIRST, FEATURES = 32, 1280
HEAD = "classifier."
"""The prefix of the classifier's weights, which are not loaded."""


def _convolution(inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(),
    )


@final
class _Block(nn.Module):
    """An inverted residual block: expand, filter each channel, project; add the input if shapes fit."""

    def __init__(self, times: int, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        inner = inputs * times
        widened = [_convolution(inputs, inner, size=1)] if times > 1 else []
        self.conv = nn.Sequential(
            *widened,
            _convolution(inner, inner, stride=stride, groups=inner),
            nn.Conv2d(inner, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.added = stride == 1 and inputs == outputs

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.conv(inputs)
        return inputs + outputs if self.added else outputs


@final
class MobileNetV2(nn.Module):
    """The network up to its last feature map: (n, 3, h, w) to (n, 1280, h / 32, w / 32)."""

    def __init__(self) -> None:
        super().__init__()
        parts: list[nn.Module] = [_convolution(3, _FIRST, stride=2)]
        channels = _FIRST
        for times, outputs, blocks, stride in _BLOCKS:
            for place in range(blocks):
                parts.append(_Block(times, channels, outputs, stride if place == 0 else 1))
                channels = outputs
        self.features = nn.Sequential(*parts, _convolution(channels, FEATURES, size=1))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the last feature map."""
        features: Tensor = self.features(inputs)
        return features


OURS = "mobilenet_v2"
"""The architecture that Tacit builds without torchvision or timm."""
_HEADS = ("classifier", "fc", "head", "heads")
"""Torchvision's names of the layers that form a head."""


def load_weights(path: Path, *, architecture: str, image_size: int | None = None) -> PretrainedPictures:
    """Load an architecture's network with the weights in a file; see ``load_pretrained``."""
    weights = _read(path)
    body, package = _network(architecture)
    expected = body.state_dict()
    lacking = [
        name for name in expected if name not in weights or weights[name].shape != expected[name].shape
    ]
    beyond = [name for name in weights if name not in expected and name.partition(".")[0] not in _HEADS]
    if lacking or beyond:
        raise InvalidInput(
            f'the weights in {path} do not fit architecture = "{architecture}". Missing or of another shape: '
            f"{len(lacking)} of the {len(expected)} tensors of {package}"
            + (f", such as {lacking[0]}" if lacking else "")
            + f". Unknown: {len(beyond)} tensors"
            + (f", such as {beyond[0]}" if beyond else "")
            + ". Set architecture to that of these weights."
        )
    body.load_state_dict({name: weights[name].to(expected[name].dtype) for name in expected})
    return PretrainedPictures(
        body.eval(),
        what=f"{architecture} of {package}",
        image_size=USUAL_SIZE if image_size is None else image_size,
        decides={"weights": file_digest(path), "architecture": architecture, "package": package},
        files={f"weights{path.suffix}": path},
        settings={"file": f"weights{path.suffix}", "architecture": architecture},
    )


def _read(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix.lower() == ".safetensors":
            from safetensors.torch import load_file

            content: Any = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # torch's message says how to run the code anyway
        raise InvalidInput(
            f"{path} contains more than tensors, and loading it could run any code. Save model.state_dict(), "
            "best as .safetensors."
        ) from None
    except Exception as problem:  # noqa: BLE001  # the libraries raise anything for another format
        reason = reason_of(problem).partition("\n")[0][:200].rstrip(".")
        raise InvalidInput(
            f"{path} cannot be read as weights: {type(problem).__name__}: {reason}. Save "
            "model.state_dict(), best as .safetensors."
        ) from None
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]  # the format of many training scripts
    if not isinstance(content, dict) or not all(isinstance(one, Tensor) for one in content.values()):
        raise InvalidInput(f"{path} contains no dict from names to tensors. Save model.state_dict().")
    return content


def _network(architecture: str) -> tuple[nn.Module, str]:
    """Return the network without its head, and the package that built it."""
    if architecture == OURS:
        return MobileNetV2(), "torchvision"
    for package, build in (("torchvision", _of_torchvision), ("timm", _of_timm)):
        if importlib.util.find_spec(package) is None:
            continue
        try:
            return build(architecture), package
        except (ValueError, RuntimeError, KeyError):
            continue  # the package does not know the name
    installed = [name for name in ("torchvision", "timm") if importlib.util.find_spec(name) is not None]
    tried = " and ".join((f"Tacit ({OURS})", *installed))
    raise InvalidInput(
        f"is not known to {tried}",
        argument="architecture",
        value=architecture,
        fix="Take a name that it knows."
        if installed
        else "Install the package that has it: pip install "
        "torchvision, or pip install timm; or export the network, without its head, as .pt2 or .onnx.",
    )


def _of_torchvision(architecture: str) -> nn.Module:
    models = importlib.import_module("torchvision.models")
    body: nn.Module = models.get_model(architecture, weights=None)
    for name in _HEADS:
        if hasattr(body, name):
            setattr(body, name, nn.Identity())
    return body


def _of_timm(architecture: str) -> nn.Module:
    body: nn.Module = importlib.import_module("timm").create_model(
        architecture, pretrained=False, num_classes=0
    )
    return body


_PREPROCESSOR = "preprocessor_config.json"


def load_vision(folder: ModelFolder, image_size: int | None, label: str) -> PretrainedPictures:
    """Load the image model in a folder; see :func:`tacit.pretrained.load_pretrained`."""
    where = f'{label} = "{folder.path}"'
    config = config_of(folder, where)
    body, lacking = load_network(_transformers().AutoModel, folder, config, where, "a model of pictures")
    if any(name.startswith("pooler.") for name in lacking):  # the saved model has a head without pooler
        body.pooler = None
        lacking = [name for name in lacking if not name.startswith("pooler.")]
    refuse_lacking(lacking, where)
    preprocessor = folder.read(_PREPROCESSOR) if (folder.path / _PREPROCESSOR).is_file() else {}
    mean, std = (MEAN, STD) if preprocessor.get("do_normalize", True) else ((0.0,) * 3, (1.0,) * 3)
    files = files_in(folder.path, (CONFIG, INDEX, _PREPROCESSOR))
    return PretrainedPictures(
        body,
        what=f"{config.model_type} of transformers",
        image_size=image_size or _size(preprocessor, config),
        mean=_colours(preprocessor, "image_mean", mean),
        std=_colours(preprocessor, "image_std", std),
        decides={"weights": folder.weights_digest(), "config": file_digest(folder.path / CONFIG)},
        files=files | {file.name: file for file in folder.weight_files},
        settings={},
    )


def _size(preprocessor: dict[str, Any], config: Any) -> int:
    """Return the side in pixels of the model's training images."""
    for entry in (
        preprocessor.get("crop_size"),
        preprocessor.get("size"),
        getattr(config, "image_size", None),
    ):
        sides = entry.values() if isinstance(entry, dict) else [entry]
        lengths = [side for side in sides if isinstance(side, int)]
        if lengths:
            return min(lengths)
    return USUAL_SIZE


def _colours(preprocessor: dict[str, Any], name: str, usual: tuple[float, ...]) -> tuple[float, ...]:
    values = preprocessor.get(name, usual) if preprocessor.get("do_normalize", True) else usual
    if (
        not isinstance(values, list | tuple)
        or len(values) != 3
        or not all(isinstance(x, int | float) for x in values)
    ):
        raise InvalidInput(f"{_PREPROCESSOR}: {name} must be three numbers, one per colour; got {values!r}.")
    return tuple(map(float, values))
