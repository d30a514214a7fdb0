"""Which operation hands records on by which rule.

An operation that is not named here, and that PyTorch does not mark as going element by element, mixes all
that it reads: to leave one out costs speed, and never the guarantee.

A row may have random numbers of its own: they are as likely beside any others.  Numbers that all records
share are another matter.  A large batch goes through the model in parts, each with other numbers, and one
record more moves others from part to part.  The same goes for numbers that are drawn together, such as a
permutation of the rows, and for those that a seed of the model gives each place of the batch.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from tacit.clipping.isolation import index_rules, op_rules
from tacit.clipping.isolation.call import FREE, Call
from tacit.clipping.isolation.op_rules import Rule, but_last, by_leading, first_alone, pointwise, whole

__all__ = ["RULES", "drawn", "is_draw", "owners_after", "rule_of"]

_UNWRITTEN = "memory that nothing is written to"


def owners_after(call: Call, result: Tensor) -> Tensor | None:
    """Whose the numbers of one result are, of its shape; None: no record's."""
    if call.plain in _EMPTY:
        owner = torch.tensor(call.mixer(_UNWRITTEN), dtype=torch.int32, device=result.device)
        return owner.expand(result.shape)
    owners = None if call.plain in _SHAPED or not call.laden else _by_rule(call, result)
    return drawn(call, result, owners) if is_draw(call) else owners


def _by_rule(call: Call, result: Tensor) -> Tensor | None:
    try:
        owners = rule_of(call.func, call.plain)(call, result)
        return None if owners is None else owners.expand(result.shape)
    except (RuntimeError, IndexError, TypeError):  # of other shapes than the rule goes by
        owners = whole(call, result)
        return None if owners is None else owners.expand(result.shape)


@lru_cache(maxsize=1024)
def rule_of(func: Any, plain: str) -> Rule:
    """The rule of an operation of PyTorch's own; others mix."""
    if plain in RULES or "::" in plain:
        return RULES.get(plain, whole)
    packet = getattr(torch.ops.aten, plain, func.overloadpacket)
    overloads = [func, *(getattr(packet, name) for name in packet.overloads())]
    return pointwise if any(torch.Tag.pointwise in one.tags for one in overloads) else whole


def _each(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


def _spatial(names: str) -> dict[str, Rule]:
    """Those that go over 1, 2 or 3 last dimensions."""
    ends = "", "_backward", "_with_indices", "_with_indices_backward", "_aa", "_aa_backward"
    return {
        f"{name}{dims}d{end}": but_last(dims) for name in names.split() for dims in (1, 2, 3) for end in ends
    }


_EMPTY = frozenset(_each("empty empty_like empty_permuted empty_strided new_empty new_empty_strided", whole))
"""Operations whose result is memory as it is."""
_SHAPED = frozenset(
    _each(
        "zeros_like ones_like full_like rand_like randn_like randint_like new_zeros new_ones new_full", whole
    )
)
"""Operations that read of a tensor no more than its shape."""

RULES: dict[str, Rule] = {
    **_each(
        "clone _to_copy fill masked_fill tril triu poisson binomial normal bernoulli where complex "
        "polar lift lift_fresh contiguous native_dropout native_dropout_backward _masked_scale "
        "_prelu_kernel _prelu_kernel_backward elu_backward gelu_backward hardshrink_backward "
        "hardsigmoid_backward hardswish hardswish_backward hardtanh_backward leaky_relu_backward "
        "log_sigmoid_forward log_sigmoid_backward mish_backward softplus_backward softshrink_backward "
        "_standard_gamma _standard_gamma_grad floor_divide "
        "threshold mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss "
        "huber_loss_backward binary_cross_entropy binary_cross_entropy_backward "
        "binary_cross_entropy_with_logits soft_margin_loss soft_margin_loss_backward "
        "fake_quantize_per_tensor_affine_cachemask _pin_memory",
        pointwise,
    ),
    **_each(
        "sum mean amax amin max min prod var var_mean std std_mean any all logsumexp argmax argmin norm "
        "linalg_vector_norm nansum median nanmedian mode count_nonzero kthvalue aminmax native_norm",
        op_rules.reduced,
    ),
    **_each(
        "cumsum cumprod logcumsumexp cummax cummin _softmax _log_softmax _safe_softmax "
        "_softmax_backward_data _log_softmax_backward_data sort argsort msort topk "
        "glu glu_backward _fft_c2c _fft_r2c _fft_c2r linalg_cross",
        op_rules.along,
    ),
    **_each(
        "convolution convolution_overrideable _convolution conv_depthwise3d _conv_depthwise2d "
        "mkldnn_convolution cudnn_convolution cudnn_convolution_transpose miopen_convolution "
        "affine_grid_generator grid_sampler_2d grid_sampler_3d grid_sampler_2d_backward "
        "grid_sampler_3d_backward _grid_sampler_2d_cpu_fallback cudnn_grid_sampler "
        "cudnn_grid_sampler_backward im2col col2im _thnn_fused_lstm_cell "
        "_thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell _thnn_fused_gru_cell_backward",
        by_leading(1),
    ),
    **_each("pixel_shuffle pixel_unshuffle", but_last(3)),
    **_each("channel_shuffle native_channel_shuffle", by_leading(1)),
    **_spatial(
        "adaptive_avg_pool adaptive_max_pool _adaptive_avg_pool avg_pool max_pool upsample_nearest "
        "_upsample_nearest_exact upsample_bicubic upsample_bilinear upsample_linear upsample_trilinear "
        "_upsample_bicubic _upsample_bilinear reflection_pad replication_pad fractional_max_pool max_unpool"
    ),
    **_each(
        "linalg_cholesky_ex linalg_inv_ex _linalg_det _linalg_slogdet _linalg_solve_ex linalg_lu_factor_ex "
        "linalg_lu linalg_lu_solve linalg_qr _linalg_svd _linalg_eigh linalg_eig _linalg_eigvals "
        "linalg_matrix_exp linalg_solve_triangular triangular_solve cholesky cholesky_solve "
        "_cholesky_solve_helper cholesky_inverse linalg_pinv linalg_householder_product lu_unpack "
        "linalg_ldl_factor_ex linalg_lstsq _cdist_backward",
        but_last(2),
    ),
    "multinomial": but_last(1),
    **_each("mm bmm", op_rules.mm),
    **_each("addmm baddbmm _addmm_activation", op_rules.addmm),
    **_each("mv addmv", op_rules.mv),
    **_each("rrelu_with_noise rrelu_with_noise_backward", op_rules.rrelu),
    "_trilinear": op_rules.trilinear,
    "_cdist_forward": op_rules.distances,
    "embedding": op_rules.embedding,
    **_each(
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward "
        "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward "
        "_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward",
        op_rules.attention,
    ),
    "convolution_backward": first_alone(by_leading(1)),
    "native_group_norm": op_rules.group_norm,
    "native_group_norm_backward": first_alone(op_rules.group_norm),
    **_each("native_layer_norm _fused_rms_norm", op_rules.layer_norm),
    **_each("native_layer_norm_backward _fused_rms_norm_backward", first_alone(op_rules.layer_norm)),
    **_each(
        "native_batch_norm native_batch_norm_backward _native_batch_norm_legit "
        "_native_batch_norm_legit_no_training cudnn_batch_norm cudnn_batch_norm_backward "
        "_batch_norm_with_update _batch_norm_no_update batch_norm_backward",
        op_rules.batch_norm,
    ),
    **_each("nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward", op_rules.nll),
    **_each(
        "multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_forward "
        "multilabel_margin_loss_backward",
        op_rules.of_classes,
    ),
    **_each("mkldnn_rnn_layer mkldnn_rnn_layer_backward", op_rules.rnn_layer),
    "_ctc_loss": op_rules.ctc,
    "_ctc_loss_backward": op_rules.ctc_backward,
    "copy": index_rules.copied,
    **_each("flip roll repeat rot90 select_scatter slice_scatter diagonal_scatter", index_rules.moved),
    **_each("cat stack _stack _chunk_cat", index_rules.joined),
    **_each("select_backward slice_backward diagonal_backward diag_embed", index_rules.put_back),
    "constant_pad_nd": index_rules.padded,
    "index_select": index_rules.selected,
    "gather": index_rules.gathered,
    **_each("index _unsafe_index", index_rules.indexed),
    **_each("index_put _unsafe_index_put _index_put_impl", index_rules.index_put),
    **_each(
        "scatter scatter_add scatter_reduce index_add index_copy index_fill index_reduce",
        index_rules.scattered,
    ),
    "unfold_backward": index_rules.unfolded,
    **_each("_embedding_bag _embedding_bag_forward_only", index_rules.bag),
    **_each("bucketize searchsorted", index_rules.searched),
}

_UNTAGGED = frozenset({"random", "_sample_dirichlet", "binomial"})
"""Operations that draw, and that PyTorch does not mark as such."""
IN_COMMON = "random numbers that records share"


def is_draw(call: Call) -> bool:
    """Whether the result of an operation that is asked for depends on random numbers."""
    if call.place > 1 and call.get("dropout_p") is not None:
        return False  # the state of a generator, which attention keeps for its backward pass
    if torch.Tag.nondeterministic_seeded not in call.func.tags and call.plain not in _UNTAGGED:
        return False
    rate = next((call.get(name) for name in ("dropout_p", "p") if call.get(name) is not None), None)
    return not (isinstance(rate, int | float) and rate in (0, 1)) and call.get("train") is not False


def drawn(call: Call, result: Tensor, owners: Tensor | None) -> Tensor:
    """The owners of random numbers: what no record owns by what was read, each row's record does.

    The rows are the first dimension of their number, or else of some times their number.
    """
    rows = len(call.rows)
    sizes = [size if size == rows or rows not in result.shape else 0 for size in result.shape]
    dim = next((dim for dim, size in enumerate(sizes) if size and size % rows == 0), None)
    if dim is None or _is_drawn_together(call, result, dim) or _is_seeded_anew(call, result):
        by_row = torch.tensor(call.mixer(IN_COMMON), dtype=torch.int32, device=result.device)
    else:
        of_each = call.rows.to(result.device).repeat_interleave(result.shape[dim] // rows)
        by_row = of_each.view(-1, *[1] * (result.dim() - 1 - dim))
    if owners is None:
        return by_row.expand(result.shape)
    return torch.where(owners == FREE, by_row, owners)


def _is_seeded_anew(call: Call, result: Tensor) -> bool:
    """Whether the model chose a seed by itself, so that each place of the batch has numbers of its own."""
    on_device = torch.cuda.default_generators if result.is_cuda else [torch.default_generator]
    generator = call.get("generator") or on_device[result.device.index or 0]
    return bool(generator.initial_seed() != call.seed)


def _is_drawn_together(call: Call, result: Tensor, dim: int) -> bool:
    """Whether the numbers of one call depend on each other along the dimension of the rows."""
    if call.plain == "multinomial":
        return call["self"].dim() == 1 and not call.get("replacement")
    if call.plain == "_sample_dirichlet":
        return dim == result.dim() - 1  # they add up to one
    return call.plain == "randperm"
