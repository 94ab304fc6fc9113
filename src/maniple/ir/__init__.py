"""The program: SSA ops over typed values, with a text form and a verifier."""

from maniple.ir.program import Attr, Input, InputKind, Op, Output, Phase, Program, Value
from maniple.ir.text import parse_program, print_program

__all__ = [
    "Attr", "Input", "InputKind", "Op", "Output", "Phase", "Program", "Value", "parse_program", "print_program",
]  # fmt: skip
