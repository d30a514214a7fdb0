"""Which record a number comes from, as followed through operations, against what changes when records do.

The oracle knows no rule: it puts other numbers in the place of one record's and looks which results change.

Letters: n records, three of them; T positions; d numbers at each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tacit.clipping.isolation import op_rules
from tacit.clipping.isolation.call import FREE, Call
from tacit.clipping.isolation.op_table import RULES, rule_of
from tacit.clipping.isolation.provenance import Provenance

N = 3
Function = Callable[..., Tensor | tuple[Tensor, ...]]


@dataclass(frozen=True)
class Sample:
    """A function of tensors of these shapes; whole numbers below ``top`` where one is given by place."""

    function: Function
    shapes: tuple[tuple[int, ...], ...]
    top: dict[int, int] = field(default_factory=dict)
    by_row: bool = True
    """Whether rows that come first stay apart."""


def of(function: Function, *shapes: tuple[int, ...], by_row: bool = True, **top: int) -> Sample:
    return Sample(function, shapes, {int(name[2:]): value for name, value in top.items()}, by_row)


def in_place(x: Tensor, y: Tensor) -> Tensor:
    out = torch.zeros(x.shape)
    out[:, 1:] = x[:, 1:] * y[:, :1]
    out[:, 0].add_(x[:, 0]).mul_(2.0)
    return out.addcmul_(x, y)


def each_twice(x: Tensor, where: Tensor) -> Tensor:
    index = torch.arange(len(x))
    return x[index, where] + x.transpose(0, 1)[where, index]


def put(x: Tensor, where: Tensor, y: Tensor) -> Tensor:
    return torch.zeros(N, 4).index_put((torch.arange(N), where), y, accumulate=True) + x


def real_and_imaginary(x: Tensor) -> Tensor:
    return torch.view_as_real(torch.view_as_complex(x) * torch.exp(torch.tensor(1j)))


SAMPLES: dict[str, Sample] = {
    "sums": of(
        lambda x: (x.sum(1), x.mean(2), x.amax((1, 2)), x.std(1), x.logsumexp(2), x.norm(dim=1)), (3, 4, 5)
    ),
    "sums of all": of(lambda x: (x.sum(), x.mean(0), x.max(0).values), (3, 4), by_row=False),
    "along": of(
        lambda x: (x.softmax(1), x.log_softmax(-1), x.cumsum(1), x.sort(1).values, x.topk(2)[0]), (3, 4)
    ),
    "along the rows": of(
        lambda x: (x.softmax(0), x.cumsum(0), x.sort(0)[0], x.flip(0)), (3, 4), by_row=False
    ),
    "products of numbers": of(lambda x: (x.prod(1), x.cumprod(1), x.cummax(1).values), (3, 4)),
    "median": of(lambda x: (x.median(1).values, x.kthvalue(2, 1).values, x.mode(1).values), (3, 4)),
    "halves": of(lambda x: (F.glu(x, 1), torch.fft.rfft(x).abs(), torch.fft.ifft(x).real), (3, 4)),
    "broadcast": of(lambda x, y: x[:, None] * y[None, :, :1] + 1, (3, 4), (4, 5), by_row=False),
    "linear": of(F.linear, (3, 4), (5, 4), (5,), by_row=False),
    "products": of(
        lambda x, y: (x @ y, torch.bmm(x, y), torch.einsum("btd,bde->bte", x, y)), (3, 2, 4), (3, 4, 5)
    ),
    "by a vector": of(
        lambda x, y: (x @ y, torch.mv(x, y), torch.addmv(x[:, 0], x, y)), (3, 4), (4,), by_row=False
    ),
    "of two": of(
        lambda x, y: (x @ y.T, torch.tensordot(x, y, ([0], [0])), torch.cdist(x, y)),
        (3, 3),
        (3, 3),
        by_row=False,
    ),
    "added products": of(
        lambda a, x, y: (torch.baddbmm(a, x, y), torch.addmm(a[0], x[0], y[0])),
        (3, 2, 5),
        (3, 2, 4),
        (3, 4, 5),
        by_row=False,
    ),
    "attention": of(lambda q, k: F.scaled_dot_product_attention(q, k, k), (3, 2, 4, 5), (3, 2, 4, 5)),
    "fewer heads of keys": of(
        lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True), (3, 4, 4, 5), (3, 2, 4, 5)
    ),
    "masked attention": of(
        lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m), (3, 2, 4, 5), (3, 1, 4, 4)
    ),
    "one mask for all": of(
        lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m), (3, 2, 4, 5), (4, 4), by_row=False
    ),
    "one mask for all, as large as rows and heads": of(
        lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m),
        (3, 3, 3, 5),
        (3, 3),
        by_row=False,
    ),
    "convolution": of(lambda x: F.conv2d(x, torch.ones(2, 2, 2, 2), padding=1), (3, 2, 4, 4)),
    "convolution by records": of(lambda x, w: F.conv1d(x, w, groups=3), (1, 3, 5), (3, 1, 2), by_row=False),
    "as many filters as rows": of(lambda x, w: F.conv1d(x, w), (3, 2, 5), (3, 2, 2), by_row=False),
    "transposed": of(lambda x: F.conv_transpose1d(x, torch.ones(2, 3, 2), stride=2), (3, 2, 4)),
    "pooled": of(
        lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 1)), (3, 2, 4, 4)
    ),
    "pooled along": of(
        lambda x: (F.max_pool1d(x, 2), F.adaptive_max_pool1d(x, 2), F.lp_pool1d(x, 2, 2)), (3, 2, 4)
    ),
    "sampled": of(
        lambda x: (F.interpolate(x, scale_factor=2), F.interpolate(x, size=5, mode="linear")), (3, 2, 4)
    ),
    "grid": of(lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False), (3, 2, 4, 4), (3, 2, 2, 2)),
    "padded": of(
        lambda x: (F.pad(x, (1, 2)), F.pad(x, (1, 1), mode="reflect"), F.pad(x, (1, 1), mode="circular")),
        (3, 2, 4),
    ),
    "patches": of(lambda x: (F.unfold(x, 2), x.unfold(2, 2, 1), F.pixel_unshuffle(x, 2)), (3, 2, 4, 4)),
    "group norm": of(lambda x: (F.group_norm(x, 2), F.layer_norm(x, (4,)), F.rms_norm(x, (4,))), (3, 4, 4)),
    "scaled by records": of(lambda x, w: F.layer_norm(x, (3,), w), (3, 3), (3,), by_row=False),
    "instance norm": of(F.instance_norm, (3, 2, 4)),
    "batch norm": of(lambda x: F.batch_norm(x, None, None, training=True), (3, 4), by_row=False),
    "fixed batch norm": of(lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4)), (3, 4, 2)),
    "cross-entropy": of(
        lambda x, y: (F.cross_entropy(x, y, reduction="none"), F.multi_margin_loss(x, y, reduction="none")),
        (3, 4),
        (3,),
        at1=4,
    ),
    "of positions": of(
        lambda x, y: F.cross_entropy(x.transpose(1, 2), y, reduction="none"), (3, 2, 4), (3, 2), at1=4
    ),
    "meaned": of(lambda x, y: F.cross_entropy(x, y), (3, 4), (3,), by_row=False, at1=4),
    "other losses": of(
        lambda x, y: (
            F.mse_loss(x, y, reduction="none"),
            F.smooth_l1_loss(x, y, reduction="none"),
            F.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction="none"),
            F.kl_div(x, y, reduction="none"),
            F.huber_loss(x, y, reduction="none"),
        ),
        (3, 4),
        (3, 4),
    ),
    "meaned squares": of(lambda x, y: (F.mse_loss(x, y), F.l1_loss(x, y)), (3, 4), (3, 4), by_row=False),
    "margins": of(
        lambda x, y: (
            F.cosine_similarity(x, y),
            F.triplet_margin_loss(x, y, x * y, reduction="none"),
            F.pairwise_distance(x, y),
            F.hinge_embedding_loss(x, y.sign(), reduction="none"),
        ),
        (3, 4),
        (3, 4),
    ),
    "activations": of(
        lambda x: (
            x.tanh(),
            F.gelu(x),
            F.silu(x),
            F.mish(x),
            F.hardswish(x),
            F.softplus(x),
            F.elu(x),
            F.leaky_relu(x),
            F.logsigmoid(x),
            x.clamp(min=0),
            x.abs().sqrt(),
            x.sign(),
        ),
        (3, 4),
    ),
    "slopes": of(F.rrelu, (3, 4)),
    "choices": of(
        lambda x, y: (
            torch.where(x > 0, x, y),
            x.masked_fill(y > 0, 0.0),
            torch.maximum(x, y),
            x.lerp(y, 0.5),
        ),
        (3, 4),
        (3, 4),
    ),
    "chosen among rows": of(lambda x: torch.where(x[:1, :1] > 0, x.flip(0), x), (3, 4), by_row=False),
    "channels shuffled": of(
        lambda x: tuple(F.channel_shuffle(x[(..., *[None] * more)], 2) for more in (1, 2, 3)), (3, 4)
    ),
    **{
        f"rows shuffled as channels of {2 + more} dimensions": of(
            lambda x, more=more: F.channel_shuffle(torch.cat([x, x])[(None, ..., *[None] * more)], 2)[0, :3],
            (3, 4),
            by_row=False,
        )
        for more in (1, 2, 3)
    },
    "looked up": of(lambda x, i: F.embedding(i, torch.ones(5, 2)) + x[..., None], (3, 4), (3, 4), at1=5),
    "looked up in records": of(lambda x, i: F.embedding(i, x), (3, 4), (3, 2), by_row=False, at1=3),
    "gathered": of(lambda x, i: (x.gather(1, i), torch.take_along_dim(x, i, 1)), (3, 4), (3, 2), at1=4),
    "gathered among rows": of(lambda x, i: x.gather(0, i), (3, 4), (3, 2), by_row=False, at1=3),
    "scattered": of(
        lambda x, i: (torch.zeros(3, 5).scatter(1, i, x), x.scatter_add(1, i, x)), (3, 4), (3, 4), at1=4
    ),
    "scattered among rows": of(lambda x, i: x.scatter(0, i, x), (3, 4), (3, 4), by_row=False, at1=3),
    "one of each row and column": of(each_twice, (3, 4, 4), (3,), at1=3),
    "one of each": of(lambda x, i: x[torch.arange(3), i], (3, 4, 4), (3,), at1=4),
    "rows by content": of(lambda x, i: (x[i], x.index_select(0, i)), (3, 4), (3,), by_row=False, at1=3),
    "put": of(put, (3, 4), (3,), (3,), at1=4),
    "put among rows": of(lambda x, i, y: x.index_put((i,), y), (3, 4), (3,), (3, 4), by_row=False, at1=3),
    "slices": of(
        lambda x: (x[:, 1:], x[:, ::2], x[:, -1], x[..., None], x.select(1, 2), x.narrow(1, 0, 2)), (3, 4)
    ),
    "moved": of(
        lambda x: (x.flip(1), x.roll(1, 1), x.repeat(1, 2, 1), x.tril(), x.movedim(1, 2).rot90(1, (1, 2))),
        (3, 4, 5),
    ),
    "shapes": of(
        lambda x: (
            x.flatten(1),
            x.flatten(0, 1).view(3, 4, 5),
            x.transpose(0, 1).reshape(4, -1).view(4, 3, 5).transpose(0, 1),
            x.permute(0, 2, 1).contiguous(),
        ),
        (3, 4, 5),
    ),
    "joined": of(
        lambda x, y: (torch.cat([x, y], 1), torch.stack([x, y], 1), *torch.cat([x, y]).chunk(2)),
        (3, 4),
        (3, 4),
    ),
    "one after the other": of(lambda x: torch.cat([x[1:], x[:1]]) * x, (3, 4), by_row=False),
    "in place": of(in_place, (3, 4), (3, 4)),
    "out of place": of(
        lambda x: torch.mul(x, 2, out=torch.zeros(3, 4)) if not x.requires_grad else x * 2, (3, 4)
    ),
    "complex": of(real_and_imaginary, (3, 4, 2)),
    "another type": of(
        lambda x: (x.double().float(), x.half().float(), (x > 0).float(), x.long().float()), (3, 4)
    ),
    "matrices": of(
        lambda x: (
            torch.linalg.inv(x + 9 * torch.eye(3)),
            torch.linalg.det(x),
            torch.linalg.matrix_exp(x),
            torch.linalg.solve(x + 9 * torch.eye(3), x),
            torch.diag_embed(x),
            x.diagonal(0, 1, 2),
        ),
        (3, 3, 3),
    ),
    "searched": of(lambda x: torch.bucketize(x, torch.linspace(-1, 1, 5)).float(), (3, 4)),
    "searched in records": of(lambda x, y: torch.searchsorted(x.sort(1).values, y).float(), (3, 4), (3, 2)),
    "bags": of(
        lambda x, i: F.embedding_bag(i, torch.ones(5, 2), mode="sum", per_sample_weights=x.detach()),
        (3, 4),
        (3, 4),
        at1=5,
    ),
    "bilinear": of(lambda x, y: F.bilinear(x, y, torch.ones(2, 4, 5)), (3, 4), (3, 5)),
    "one-hot": of(lambda i: torch.zeros(3, 2, 5).scatter_(2, i[..., None], 1.0), (3, 2), at0=5),
    "recurrent": of(
        lambda x: torch.lstm(
            x,
            [torch.zeros(1, 3, 2)] * 2,
            [torch.ones(8, 4), torch.ones(8, 2)],
            False,
            1,
            0.0,
            False,
            False,
            True,
        )[0],
        (3, 2, 4),
    ),
}


def tensors(sample: Sample) -> list[Tensor]:
    return [
        torch.randint(0, sample.top[place], shape) if place in sample.top else torch.randn(shape)
        for place, shape in enumerate(sample.shapes)
    ]


def results(
    sample: Sample, inputs: list[Tensor], flow: Provenance | None, owners: list[Tensor]
) -> list[Tensor]:
    """Results, and gradients of their sum by the inputs."""
    torch.manual_seed(0)
    leaves = [t.clone().requires_grad_(t.is_floating_point()) for t in inputs]
    for leaf, whose in zip(leaves, owners, strict=True):
        if flow is not None:
            flow.own(leaf, whose)
    with contextlib.nullcontext() if flow is None else flow:
        found = sample.function(*leaves)
        found = found if isinstance(found, tuple) else (found,)
        of_graph = [t for t in found if t.requires_grad]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        ones = [torch.ones_like(t) for t in of_graph]
        gradients: tuple[Tensor | None, ...] = ()
        if of_graph:
            gradients = torch.autograd.grad(of_graph, wanted, ones, allow_unused=True)
    return [t.detach() for t in found] + [t for t in gradients if t is not None]


def with_others(inputs: list[Tensor], owners: list[Tensor], record: int, sample: Sample) -> list[Tensor]:
    """The inputs with other numbers in the place of those of one record."""
    return [
        torch.where(whose == record, other, one)
        for one, other, whose in zip(inputs, tensors(sample), owners, strict=True)
    ]


def check(sample: Sample, owners: list[Tensor], seed: int) -> list[Tensor]:
    """What changes with a record is its own, or has several owners; return the owners of all results."""
    torch.manual_seed(seed)
    inputs = tensors(sample)
    flow = Provenance((torch.zeros(N, 1),), 1)
    found = results(sample, inputs, flow, owners)
    whose = [torch.full(t.shape, FREE) if (w := flow.owners(t)) is None else w for t in found]
    for record in range(N):
        torch.manual_seed(seed + record + 1)
        others = results(sample, with_others(inputs, owners, record, sample), None, owners)
        for one, other, w in zip(found, others, whose, strict=True):
            differs = ~torch.isclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)
            assert not bool((differs & (w != record) & (w < N)).any()), (record, w.tolist())
    return whose


def of_rows(sample: Sample) -> list[Tensor]:
    return [
        torch.arange(N).view(-1, *[1] * (len(s) - 1)).expand(s) if s[0] == N else torch.full(s, FREE)
        for s in sample.shapes
    ]


@pytest.mark.untraced
@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**20), data=st.data())
def test_what_changes_with_a_record_is_its_own(sample: Sample, seed: int, data: st.DataObject) -> None:
    """Owners lie along any dimension, here and there, or nowhere."""
    owners = []
    for shape in sample.shapes:
        along = data.draw(st.sampled_from(["scattered", "none", *range(len(shape))]))
        generator = torch.Generator().manual_seed(seed)
        if along == "scattered":
            owners.append(torch.randint(-1, N, shape, generator=generator))
        elif along == "none":
            owners.append(torch.full(shape, FREE))
        else:
            sizes = [-1 if d == along else 1 for d in range(len(shape))]
            owners.append((torch.arange(shape[int(along)]) % N).view(sizes).expand(shape))
    check(sample, owners, seed)


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_rows_that_stay_apart_are_known_to(sample: Sample) -> None:
    whose = check(sample, of_rows(sample), 0)
    own = [torch.arange(N).view(-1, *[1] * (w.dim() - 1)) for w in whose if w.dim()]
    apart = all(w.dim() > 0 and len(w) == N for w in whose) and all(
        bool(((w == o) | (w == FREE)).all()) for w, o in zip(whose, own, strict=True)
    )
    assert apart == sample.by_row


def forgetful(call: Call, result: Tensor) -> Tensor | None:
    del call, result
    return None


def of_the_left(call: Call, result: Tensor) -> Tensor | None:
    del result
    return call.over(call.of(call["self"]), [1])


@pytest.mark.parametrize(
    ("name", "wrong", "seen_by"),
    [
        ("_softmax", op_rules.pointwise, "along the rows"),
        ("mm", of_the_left, "of two"),
        ("native_batch_norm", op_rules.pointwise, "batch norm"),
        ("sum", forgetful, "sums of all"),
        ("gather", op_rules.by_leading(1), "gathered among rows"),
        ("index_put", forgetful, "put among rows"),
    ],
)
def test_a_wrong_rule_is_seen(
    name: str, wrong: op_rules.Rule, seen_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = SAMPLES[seen_by]
    check(sample, of_rows(sample), 1)
    monkeypatch.setitem(RULES, name, wrong)
    rule_of.cache_clear()
    try:
        with pytest.raises(AssertionError):
            check(sample, of_rows(sample), 1)
    finally:
        rule_of.cache_clear()


def test_a_weight_of_records_is_not_taken_for_one_of_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op_rules, "_NO_ROWS", frozenset())
    sample = SAMPLES["as many filters as rows"]
    with pytest.raises(AssertionError):
        check(sample, of_rows(sample), 1)
