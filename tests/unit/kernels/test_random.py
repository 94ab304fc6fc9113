"""The random numbers: uniform, and independent between elements, seeds and ops."""

from __future__ import annotations

import pytest
import torch

from maniple.kernels.torch.random import rng_uniform

CPU = torch.device("cpu")
N = 200_000


def draw(seed: int = 0, number: int = 0, kind: torch.dtype = torch.float64, n: int = N) -> torch.Tensor:
    return rng_uniform(torch.tensor(seed), number, (n,), [0], (n,), kind, CPU)


@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
@pytest.mark.parametrize("seed", [0, 1, 2, -1, 2**63 - 1, -(2**63), 123456789])
def test_moments(seed: int, kind: torch.dtype) -> None:
    x = draw(seed, kind=kind).to(torch.float64)
    assert x.min() >= 0
    assert x.max() < 1
    for power in (1, 2, 3):
        sigma = (1 / (2 * power + 1) - 1 / (power + 1) ** 2) ** 0.5 / N**0.5
        assert abs(float((x**power).mean()) - 1 / (power + 1)) < 4.5 * sigma


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5])
def test_rate_of_a_mask(rate: float) -> None:
    for number in range(8):
        kept = float((draw(7, number) < rate).to(torch.float64).mean())
        assert abs(kept - rate) < 4.5 * (rate * (1 - rate) / N) ** 0.5


def test_even_over_bins() -> None:
    counts = torch.histc(draw(3), bins=256, min=0, max=1)
    chi_squared = float(((counts - N / 256) ** 2 / (N / 256)).sum())
    assert abs(chi_squared - 255) < 4.5 * (2 * 255) ** 0.5


def correlation(x: torch.Tensor, y: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([x, y]))[0, 1])


def test_independent_of_neighbouring_seeds_ids_and_elements() -> None:
    base = draw(5, 5)
    others = [draw(6, 5), draw(4, 5), draw(5, 6), draw(5, 4), draw(6, 4), draw(4, 6), draw(5 + 2**32, 5), draw(-5, 5)]
    others += [base.roll(shift) for shift in (1, 2, 3, 64, 1024)]
    for other in others:
        assert abs(correlation(base, other)) < 4.5 / N**0.5
        assert not torch.equal(base, other)
        both = float(((base < 0.1) & (other < 0.1)).to(torch.float64).mean())
        assert abs(both - 0.01) < 4.5 * (0.01 * 0.99 / N) ** 0.5


def test_streams_share_no_numbers() -> None:
    streams = torch.cat([draw(seed, number, n=20_000) for seed in range(4) for number in range(4)])
    assert len(streams.unique()) == len(streams)


def test_first_numbers_of_consecutive_seeds_are_uniform() -> None:
    x = torch.cat([draw(seed, n=2) for seed in range(4000)])
    assert abs(float(x.mean()) - 0.5) < 4.5 * (1 / 12 / len(x)) ** 0.5
    assert abs(correlation(x[:-2], x[2:])) < 4.5 / len(x) ** 0.5


def test_each_bit_is_fair() -> None:
    bits = (draw(11) * 2.0**53).to(torch.int64)
    for shift in range(53):
        ones = float(((bits >> shift) & 1).to(torch.float64).mean())
        assert abs(ones - 0.5) < 4.5 * 0.5 / N**0.5


def test_a_shard_is_a_part_of_the_whole() -> None:
    whole = rng_uniform(torch.tensor(1), 2, (6, 5, 4), [0, 0, 0], (6, 5, 4), torch.float32, CPU)
    part = rng_uniform(torch.tensor(1), 2, (2, 3, 4), [4, 1, 0], (6, 5, 4), torch.float32, CPU)
    assert torch.equal(part, whole[4:6, 1:4])


def test_the_same_numbers_for_ever() -> None:
    """Saved runs must stay reproducible: these numbers follow from the published algorithm, in Python integers."""
    mask = (1 << 64) - 1

    def mix(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & mask
        return x ^ (x >> 31)

    weyl = 0x9E3779B97F4A7C15
    seed, number = 42, 3
    first = mix((mix((seed + weyl) & mask) + (number + 1) * weyl) & mask)
    second = mix((first + weyl) & mask)
    expected = [(mix((mix((n * weyl + first) & mask) + second) & mask) >> 11) * 2.0**-53 for n in range(8)]
    assert draw(seed, number, n=8).tolist() == expected
