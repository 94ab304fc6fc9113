"""The smallest training step that shows everything: two layers, momentum. docs/how-it-works.md follows it from here to tasks.

$ maniple explain examples/two_layers.py:make --strategy "dp=2"
$ maniple check examples/two_layers.py:make --strategy "dp=2 zero=3"
"""

import torch
from torch import nn
from torch.nn import functional as F


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 16, bias=False)
        self.down = nn.Linear(16, 2, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def train_step(model, optimizer, batch):
    loss = F.mse_loss(model(batch["x"]), batch["y"])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def make():
    """Return what a check needs: the step, the model, the optimizer and an example batch."""
    model = TwoLayers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batch = {"x": torch.randn(8, 4), "y": torch.randn(8, 2)}
    return train_step, model, optimizer, batch
