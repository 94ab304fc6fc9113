"""PyTorch kernels: a local program becomes one Python function of PyTorch calls."""

from maniple.kernels.torch.compile import Body, compile_program
from maniple.kernels.torch.emit import TORCH_DTYPES
from maniple.kernels.torch.memory import body_memory

__all__ = ["TORCH_DTYPES", "Body", "body_memory", "compile_program"]
