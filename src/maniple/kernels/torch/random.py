"""Random numbers as a function of seed, op and position, so that every sharding draws the same.

The generator is counter-based: each element's global linear index, spread by Weyl's constant, is mixed twice by the finaliser of SplitMix64
(Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014; constants of Stafford's variant 13), with two 64-bit
keys, made of seed and op id by the same mixing, added in between. Integers wrap around in 64 bits, in PyTorch as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch

from maniple.ir.program import Op
from maniple.kernels.torch.emit import Emit, dtype, literal, offset

_WEYL: Final = 0x9E3779B97F4A7C15
_MULTIPLY_1: Final = 0xBF58476D1CE4E5B9
_MULTIPLY_2: Final = 0x94D049BB133111EB
_MANTISSA_BITS: Final = {torch.float64: 53, torch.float32: 24}


def _signed(value: int) -> int:
    """Return the signed 64-bit integer with the low 64 bits of `value`."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _shift_(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift right in place, filling with zeros."""
    return x.bitwise_right_shift_(bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mix_(x: torch.Tensor) -> torch.Tensor:
    """Apply the finaliser of SplitMix64 in place."""
    for bits, factor in ((30, _MULTIPLY_1), (27, _MULTIPLY_2)):
        x.bitwise_xor_(_shift_(x.clone(), bits)).mul_(_signed(factor))
    return x.bitwise_xor_(_shift_(x.clone(), 31))


def global_index(shape: Sequence[int], offsets: Sequence[int], global_shape: Sequence[int], device: torch.device) -> torch.Tensor:
    """Return, for each element of a shard, its linear index in the whole tensor, as i64."""
    index = torch.zeros((), dtype=torch.int64, device=device)
    for dim, (n, start) in enumerate(zip(shape, offsets, strict=True)):
        stride = math.prod(global_shape[dim + 1 :])
        line = torch.arange(start, start + n, dtype=torch.int64, device=device) * stride
        index = index.unsqueeze(-1) + line
    return index


def rng_uniform(
    seed: torch.Tensor,
    number: int,
    shape: Sequence[int],
    offsets: Sequence[int],
    global_shape: Sequence[int],
    kind: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """Return numbers in [0, 1), with as many random bits as the dtype has in its mantissa.

    Args:
        seed: i64 of rank 0.
        number: id of the op.
        shape: shape of the shard.
        offsets: where the shard begins, for each dim.
        global_shape: shape of the whole tensor.
        kind: float64 or float32.
        device: where the numbers are made.
    """
    first = _mix_(_mix_(seed.to(device) + _signed(_WEYL)) + _signed((number + 1) * _WEYL))
    second = _mix_(first + _signed(_WEYL))
    index = global_index(shape, offsets, global_shape, device)
    bits = _mix_(_mix_(index.mul_(_signed(_WEYL)).add_(first)).add_(second))
    mantissa = _MANTISSA_BITS[kind]
    return _shift_(bits, 64 - mantissa).to(kind).mul_(2.0**-mantissa)


def _emit(op: Op, operands: Sequence[str]) -> str:
    kind = op.results[0].type
    offsets = ", ".join(offset(operands, 1 + dim) for dim in range(kind.rank))
    places = f"{literal(kind.shape)}, [{offsets}], {literal(op.ints('global_shape'))}"
    return f"rng_uniform({operands[0]}, {op.integer('id')}, {places}, {dtype(kind.dtype)}, device)"


RANDOM: Final[Mapping[str, Emit]] = {"rng_uniform": _emit}
"""Kernels of the random ops."""

RANDOM_FUNCTIONS: Final[Mapping[str, Callable[..., torch.Tensor]]] = {"rng_uniform": rng_uniform}
"""Functions that those kernels call."""
