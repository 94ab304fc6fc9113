"""Lets the tests of this folder import the modules beside them, and keeps PyTorch to one thread."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)
