"""Lets the tests of this folder import the samples of the op table, and keeps PyTorch to one thread."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "oracle"))
torch.set_num_threads(1)
