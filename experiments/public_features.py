"""Picture features from a dictionary of whitened patches of public pictures, without a privacy cost.

This is the method of Coates, Lee and Ng ("An analysis of single-layer networks in unsupervised feature
learning", AISTATS 2011).  Normalised patches are compared with a dictionary of whitened public patches; the
responses are rectified on both sides and averaged over quadrants.  :mod:`tacit.models.picture_features` then
processes the features.

No private record is read here, so the features cost no privacy.  Results should name the public pictures.

Letters: n pictures; c colours; p patch side; m atoms; g pooling cells per side; d = 2 m g^2 / 2 features.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.errors import InvalidInput, check_integer

_CONTRAST = 0.01  # added to the variance of a patch, so that nearly constant patches stay small
_WHITENING = 0.01  # fraction of the mean eigenvalue that whitening adds to every eigenvalue
_SMALLEST = 1e-3  # a lower limit on the norm by which whitened patches are divided
_PATCHES = 100_000
_CHUNK = 500


class PatchDictionary:
    """The responses of pictures to m public patches and their mirror images; see the module.

    Args:
        public: (n, c, h, w) public pictures in [0, 1]; their patches are whitened and sampled as atoms.
        side: p, in pixels.
        atoms: m, an even number: half are sampled, and half are their mirror images.
        shift: a threshold; smaller responses become 0.
        pool: (size, stride) of the square pooling cells, in patch positions.
        dtype: the type of the one large matrix product; bfloat16 is faster on processors that support it.
    """

    def __init__(
        self,
        public: Tensor,
        *,
        side: int = 6,
        atoms: int = 2048,
        shift: float = 0.2,
        pool: tuple[int, int] = (14, 13),
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if public.ndim != 4 or len(public) == 0:
            raise InvalidInput(f"public pictures must be (n, c, h, w); got {tuple(public.shape)}.")
        self.side, self.shift = check_integer("side", side, low=2), shift
        self.atoms = 2 * (check_integer("atoms", atoms, low=2) // 2)
        self._pool = _pooling(public.shape[-1] - side + 1, *pool).to(dtype)
        generator = torch.Generator().manual_seed(seed)
        patches = self._patches(public[:2000], stride=max(1, side - 1))
        patches = patches[torch.randperm(len(patches), generator=generator)[:_PATCHES]]
        colours = public.shape[1]
        both = _contrast(torch.cat([patches, _mirror(patches, colours, side)]))
        self._whiten = _inverse_root(both.T @ both / len(both), _WHITENING)
        drawn = _contrast(patches)
        lively = (drawn.norm(dim=1) > 0.5 * drawn.norm(dim=1).median()).nonzero()[:, 0]
        chosen = lively[torch.randperm(len(lively), generator=generator)[: self.atoms // 2]]
        if len(chosen) < self.atoms // 2:
            raise InvalidInput(
                f"{len(public)} public pictures give too few patches for {atoms} atoms: {len(lively)}."
            )
        half = F.normalize(drawn[chosen] @ self._whiten, dim=1)
        full = torch.cat([half, _mirror(half, colours, side)])
        self._products = (self._whiten @ full.T).contiguous()
        self._fast = self._products.to(dtype)

    @property
    def width(self) -> int:
        """The number of features per picture."""
        return self.atoms * len(self._pool)

    def __call__(self, pictures: Tensor) -> Tensor:
        """Map (n, c, h, w) pictures to (n, width) features, the same for a picture and its mirror image."""
        cells = len(self._pool)
        out = torch.empty(len(pictures), 2, self.atoms, cells)
        for row in range(len(pictures)):
            patches = _contrast(self._patches(pictures[row : row + 1], stride=1))
            patches = patches / (patches @ self._whiten).norm(dim=1, keepdim=True).clamp_min(_SMALLEST)
            response = patches.to(self._fast.dtype) @ self._fast
            out[row, 0] = (self._pool @ (response - self.shift).relu_()).T
            out[row, 1] = (self._pool @ response.neg_().sub_(self.shift).relu_()).T
        return _fold(out, round(cells**0.5))

    def _patches(self, pictures: Tensor, *, stride: int) -> Tensor:
        columns = F.unfold(pictures, self.side, stride=stride)
        patches: Tensor = columns.transpose(1, 2).reshape(-1, pictures.shape[1] * self.side**2)
        return patches


def _pooling(positions: int, size: int, stride: int) -> Tensor:
    """Return the matrix (g^2, positions^2) that averages over each square cell of patch positions."""
    cells = (positions - size) // stride + 1
    if cells < 1:
        raise InvalidInput(f"a pooling cell of {size} does not fit into {positions} patch positions.")
    line = torch.zeros(cells, positions)
    for cell in range(cells):
        line[cell, cell * stride : cell * stride + size] = 1 / size
    return torch.kron(line, line).contiguous()


def _contrast(patches: Tensor) -> Tensor:
    """Normalise each patch to mean 0 and, unless it is nearly constant, variance 1."""
    centred = patches - patches.mean(1, keepdim=True)
    return centred / (centred.var(1, keepdim=True) + _CONTRAST).sqrt()


def _mirror(patches: Tensor, colours: int, side: int) -> Tensor:
    return patches.reshape(-1, colours, side, side).flip(-1).reshape(len(patches), -1)


def _inverse_root(covariance: Tensor, regularisation: float) -> Tensor:
    """Return (S + r mean(S) I)^(-1/2) of a symmetric matrix S, with the mean of its eigenvalues."""
    values, vectors = torch.linalg.eigh(covariance)
    roots = (values.clamp_min(0) + regularisation * values.mean()).rsqrt()
    root: Tensor = vectors @ torch.diag(roots) @ vectors.T
    return root


def _fold(responses: Tensor, cells: int) -> Tensor:
    """Average responses with those of the mirror image, which swaps atoms and columns of cells."""
    n, signs, atoms, _ = responses.shape
    maps = responses.reshape(n, signs, 2, atoms // 2, cells, cells)
    return ((maps[:, :, 0] + maps[:, :, 1].flip(-1)) / 2**0.5).reshape(n, -1)


def in_chunks(
    function: Callable[[Tensor], Tensor],
    pictures: Tensor,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Apply ``function`` to a few pictures at a time, report progress, and join the results."""
    parts = []
    with torch.no_grad():
        for start in range(0, len(pictures), _CHUNK):
            parts.append(function(pictures[start : start + _CHUNK]))
            if progress is not None:
                progress(min(start + _CHUNK, len(pictures)), len(pictures))
    return torch.cat(parts)
