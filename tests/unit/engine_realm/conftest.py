"""Lets these tests import the random programs of the reference engine's tests, and the module beside them."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)
