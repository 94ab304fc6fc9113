"""The op table: one row per op, and everything follows from the row."""

from maniple.ops.builder import Builder
from maniple.ops.catalog import CATALOG, definition
from maniple.ops.factors import FactorRule
from maniple.ops.opdef import OpDef

__all__ = ["CATALOG", "Builder", "FactorRule", "OpDef", "definition"]
