"""The mapping table: one row for each ATen op, a function that emits ops of the op set.

A row is called with the emitter and the op's arguments: tensors as values, symbolic numbers as scalars, everything else as it is. It
returns a value, or a tuple of values for an op with several results (None for those that nothing may use).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from maniple.capture.torch.table.bags import BAGS
from maniple.capture.torch.table.complex import COMPLEX, is_complex
from maniple.capture.torch.table.contract import CONTRACT
from maniple.capture.torch.table.create import CREATE
from maniple.capture.torch.table.divide import DIVIDE
from maniple.capture.torch.table.elementwise import ELEMENTWISE
from maniple.capture.torch.table.gradients import GRADIENTS
from maniple.capture.torch.table.indexing import INDEXING
from maniple.capture.torch.table.layers import LAYERS
from maniple.capture.torch.table.loss import LOSS
from maniple.capture.torch.table.matrix import MATRIX
from maniple.capture.torch.table.normalize import NORMALIZE
from maniple.capture.torch.table.order import ORDER
from maniple.capture.torch.table.pooling import POOLING
from maniple.capture.torch.table.reduce import REDUCE
from maniple.capture.torch.table.resample import RESAMPLE
from maniple.capture.torch.table.scalars import SCALARS
from maniple.capture.torch.table.scatter import SCATTER
from maniple.capture.torch.table.special import SPECIAL
from maniple.capture.torch.table.views import VIEWS
from maniple.capture.torch.table.windows import WINDOWS

Row = Callable[..., Any]

_FAMILIES = (
    BAGS,
    CONTRACT,
    CREATE,
    DIVIDE,
    ELEMENTWISE,
    GRADIENTS,
    INDEXING,
    LAYERS,
    LOSS,
    MATRIX,
    NORMALIZE,
    ORDER,
    POOLING,
    REDUCE,
    RESAMPLE,
    SCATTER,
    SPECIAL,
    VIEWS,
    WINDOWS,
)

ATEN: Final[Mapping[str, Row]] = MappingProxyType({name: row for family in _FAMILIES for name, row in family.items()})

__all__ = ["ATEN", "COMPLEX", "SCALARS", "is_complex"]
