"""The generator's addresses, and what draws are refused; ``test_noise_law.py`` has the law."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import InvalidInput
from tacit.noise import gaussian as kernel
from tacit.noise.gaussian import StepNoise, gaussian
from tacit.noise.generator import Generator, Purpose
from tacit.testing import seeded_generator


def raw_bytes(
    generator: Generator,
    count: int,
    *,
    purpose: Purpose = Purpose.NOISE,
    step: int = 1,
    index: int = 0,
    rank: int = 0,
    first_block: int = 0,
) -> bytes:
    out = bytearray(count)
    generator.fill(
        memoryview(out), purpose=purpose, step=step, index=index, rank=rank, first_block=first_block
    )
    return bytes(out)


def test_same_address_same_words_other_address_other_words() -> None:
    generator = Generator.from_os()
    first = generator.words(100, purpose=Purpose.NOISE, step=3, index=1)
    assert np.array_equal(first, generator.words(100, purpose=Purpose.NOISE, step=3, index=1))
    seen = {int(word) for word in first}
    others = [(Purpose.SAMPLING, 3, 1), (Purpose.NOISE, 4, 1), (Purpose.NOISE, 3, 2), (Purpose.NOISE, 1, 3)]
    for purpose, step, index in others:
        words = {int(word) for word in generator.words(100, purpose=purpose, step=step, index=index)}
        assert not words & seen
        seen |= words


def test_words_match_the_cipher_block_by_block() -> None:
    """An independent oracle: the address written out and encrypted one block at a time."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    key = bytes(range(16))
    got = raw_bytes(Generator(key, secure=False), 48, purpose=Purpose.SAMPLING, step=5, index=7, rank=3)
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # one block: no mode to speak of
    blocks = b"".join(
        encryptor.update(
            bytes([0, 2])
            + (5).to_bytes(5, "big")
            + (3).to_bytes(2, "big")
            + (7).to_bytes(3, "big")
            + i.to_bytes(4, "big")
        )
        for i in range(3)
    )
    assert got == blocks


def test_first_block_continues_the_same_stream() -> None:
    generator = Generator.from_os()
    whole = raw_bytes(generator, 3_000_000)
    part = raw_bytes(generator, 1_000, first_block=100_000)
    assert whole[1_600_000:1_601_000] == part


def test_two_keys_from_the_system_differ() -> None:
    first, second = Generator.from_os(), Generator.from_os()
    assert first.secret_state() != second.secret_state()
    assert first.secure
    assert "operating system" in first.name


def test_seeded_generator_is_marked() -> None:
    assert not seeded_generator(3).secure
    assert "not private" in seeded_generator(3).name
    assert seeded_generator(3).secret_state() == seeded_generator(3).secret_state()
    with pytest.raises(InvalidInput, match="seed"):
        seeded_generator(-1)


def test_numpy_generator_is_addressed() -> None:
    generator = Generator.from_os()
    first = generator.numpy(purpose=Purpose.AUGMENTATION, step=2).random(4)
    assert np.array_equal(first, generator.numpy(purpose=Purpose.AUGMENTATION, step=2).random(4))
    assert not np.array_equal(first, generator.numpy(purpose=Purpose.AUGMENTATION, step=3).random(4))


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("step", -1),
        ("step", 1 << 40),
        ("index", 1 << 24),
        ("rank", 1 << 16),
        ("first_block", 1 << 32),
        ("digit", 1 << 8),
    ],
)
def test_addresses_outside_the_counter_are_refused(part: str, value: int) -> None:
    address = {"step": 0, "index": 0, "rank": 0, "first_block": 0} | {part: value}
    with pytest.raises(InvalidInput, match=part):
        Generator.from_os().fill(memoryview(bytearray(1)), purpose=Purpose.NOISE, **address)


def test_more_than_an_address_holds_is_refused() -> None:
    generator = Generator.from_os()
    last = (1 << 32) - 1
    assert len(raw_bytes(generator, 16, first_block=last)) == 16
    with pytest.raises(InvalidInput, match="count"):
        raw_bytes(generator, 17, first_block=last)
    with pytest.raises(InvalidInput, match="count"):
        generator.words((1 << 33) + 1, purpose=Purpose.NOISE, step=0)
    with pytest.raises(InvalidInput, match="number of draws"):
        gaussian(generator, (1 << 34,), std=1.0, step=0)


@given(st.lists(st.tuples(*(st.integers(0, 2**b - 1) for b in (40, 24, 16))), min_size=2, unique=True))
def test_different_addresses_have_different_counters(addresses: list[tuple[int, int, int]]) -> None:
    generator = seeded_generator(0)
    counters = {
        generator.counter(purpose=purpose, step=step, index=index, rank=rank, digit=digit)[:12]
        for step, index, rank in addresses
        for purpose in Purpose
        for digit in (0, 1, 255)
    }
    assert len(counters) == len(addresses) * len(Purpose) * 3


def test_key_length_is_checked() -> None:
    with pytest.raises(InvalidInput, match="16 bytes"):
        Generator(b"short", secure=True)


def test_shapes_types_and_refusals() -> None:
    generator = Generator.from_os()
    assert gaussian(generator, (0,), std=1.0, step=0).shape == (0,)
    assert gaussian(generator, (), std=1.0, step=0).shape == ()
    assert gaussian(generator, (3, 5), std=1.0, step=0, dtype=torch.float64).dtype == torch.float64
    assert not gaussian(generator, (3,), std=0.0, step=0).any()
    with pytest.raises(InvalidInput, match="float32 or float64"):
        gaussian(generator, (3,), std=1.0, step=0, dtype=torch.bfloat16)
    with pytest.raises(InvalidInput, match="std"):
        gaussian(generator, (3,), std=-1.0, step=0)
    with pytest.raises(InvalidInput, match="ranks"):
        gaussian(generator, (3,), std=1.0, step=0, ranks=0)
    with pytest.raises(InvalidInput, match="rank"):
        gaussian(generator, (3,), std=1.0, step=0, rank=2, ranks=2)
    with pytest.raises(InvalidInput, match="contiguous"):
        StepNoise(generator, std=1.0, step=0).fill(torch.empty(3, 4).T, 0)
    with pytest.raises(InvalidInput, match="float32 or float64"):
        StepNoise(generator, std=1.0, step=0).fill(torch.empty(3, dtype=torch.float16), 0)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_noise_has_the_same_bits() -> None:
    generator = Generator.from_os()
    here = gaussian(generator, (1000,), std=1.0, step=0)
    assert torch.equal(here, gaussian(generator, (1000,), std=1.0, step=0, device="cuda").cpu())


@given(
    st.lists(
        st.tuples(st.sampled_from([Purpose.MODEL, Purpose.READING]), st.integers(0, 500), st.integers(0, 3)),
        min_size=1,
        max_size=30,
    )
)
def test_words_of_steps_are_those_of_their_block(asked: list[tuple[Purpose, int, int]]) -> None:
    """In whatever order they are asked for: word s % 128 of the address of s // 128."""
    generator = seeded_generator(5)
    for purpose, step, index in asked:
        block = generator.words(128, purpose=purpose, step=step // 128, index=index)
        assert generator.word(purpose=purpose, step=step, index=index) == int(block[step % 128])


def test_words_of_steps_are_all_different() -> None:
    generator = Generator.from_os()
    found = [
        generator.word(purpose=purpose, step=step, index=index)
        for purpose in (Purpose.MODEL, Purpose.READING)
        for index in (0, 1)
        for step in range(300)
    ]
    assert len(set(found)) == len(found)
    with pytest.raises(InvalidInput, match="step"):
        generator.word(purpose=Purpose.MODEL, step=-1)
    with pytest.raises(InvalidInput, match="step"):
        generator.word(purpose=Purpose.MODEL, step=1 << 47)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_part_of_the_noise_is_that_of_the_whole(
    native: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(kernel, "loaded", lambda: None)
    noise = StepNoise(seeded_generator(1), std=2.0, step=3)
    noise.fill(whole := torch.empty(20_000, dtype=dtype), 5)
    edges = (0, 1, 2047, 2048, 2049, 4096, 5000, 12_288, 19_999, 20_000)
    for first, stop in [(a, b) for a in edges for b in edges if a <= b]:
        noise.fill_part(part := torch.empty(stop - first, dtype=dtype), 5, first)
        assert torch.equal(part, whole[first:stop]), (first, stop)
