"""The table: every op there is."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from maniple.base.errors import VerifyError
from maniple.ops.activation import ACTIVATION
from maniple.ops.attention import ATTENTION
from maniple.ops.batch_norm import BATCH_NORM
from maniple.ops.collectives import COLLECTIVES
from maniple.ops.convolution import CONVOLUTION
from maniple.ops.elementwise import ELEMENTWISE
from maniple.ops.fourier import FOURIER
from maniple.ops.gather import GATHER
from maniple.ops.lookup import LOOKUP
from maniple.ops.matrix import MATRIX
from maniple.ops.normalize import NORMALIZE
from maniple.ops.opdef import OpDef
from maniple.ops.pool import POOL
from maniple.ops.random import RANDOM
from maniple.ops.reduce import REDUCE
from maniple.ops.reshape import RESHAPE
from maniple.ops.sort import SORT
from maniple.ops.special import SPECIAL
from maniple.ops.structure import STRUCTURE

_FAMILIES = (
    ELEMENTWISE, STRUCTURE, RESHAPE, REDUCE, RANDOM, COLLECTIVES, LOOKUP, ACTIVATION, NORMALIZE, ATTENTION, CONVOLUTION, BATCH_NORM,
    POOL, GATHER, SORT, SPECIAL, MATRIX, FOURIER,
)  # fmt: skip

CATALOG: Final[Mapping[str, OpDef]] = MappingProxyType({row.name: row for family in _FAMILIES for row in family})


def definition(name: str) -> OpDef:
    """Return the row of op `name`.

    Raises:
        VerifyError: if there is none.
    """
    if name not in CATALOG:
        raise VerifyError(f"there is no op {name!r} in the table")
    return CATALOG[name]
