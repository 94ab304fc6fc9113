"""What users call, and the only package that knows several stages."""

from maniple.api.check import check
from maniple.api.compile import Plan, compile_program
from maniple.api.explain import explain
from maniple.api.step import Step, parallelize
from maniple.api.trace import trace
from maniple.api.train import train

__all__ = ["Plan", "Step", "check", "compile_program", "explain", "parallelize", "trace", "train"]
