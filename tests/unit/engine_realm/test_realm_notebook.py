"""Steps in a Jupyter kernel: run, interrupted, run again."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

HERE = Path(__file__).parent
TIMEOUT_S = 120

PREPARE = """
import time
import torch
import maniple

def train_step(model, optimizer, batch):
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss

torch.manual_seed(0)
model = torch.nn.Linear(6, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = maniple.parallelize(train_step, model, optimizer, strategy="dp=2", engine="realm:2")
losses = [step(torch.ones(4, 6)).item() for _ in range(3)]
print(losses[0] > losses[1] > losses[2] > 0)
"""

SLOW = """
from graphs import small_graph, small_inputs
from maniple.engine.realm import RealmEngine

def slow(*local):
    def run(*operands):
        print("running", flush=True)
        time.sleep(0.5)
        return (operands[0].clone(),)
    return run

while True:
    RealmEngine(slow, 2).run(small_graph("dp=2", "dp"), small_inputs())
"""

AGAIN = """
print(step(torch.ones(4, 6)).item() < losses[2])
"""


class Kernel:
    """A running kernel."""

    def __init__(self, manager: KernelManager) -> None:
        self.manager, self.client = manager, manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=TIMEOUT_S)

    def messages(self, code: str) -> Iterator[dict[str, Any]]:
        """Yield what running `code` publishes, until it has run."""
        number = self.client.execute(code)
        while True:
            message = self.client.get_iopub_msg(timeout=TIMEOUT_S)
            if message["parent_header"].get("msg_id") != number:
                continue
            yield message
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return

    def run(self, code: str) -> str:
        """Return what `code` prints.

        Raises:
            AssertionError: if it raises.
        """
        printed = ""
        for message in self.messages(code):
            assert message["msg_type"] != "error", message["content"]
            if message["msg_type"] == "stream":
                printed += message["content"]["text"]
        return printed


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    manager = KernelManager()
    path = os.pathsep.join([str(HERE), str(HERE.parent / "engine"), *sys.path])
    manager.start_kernel(env={**os.environ, "PYTHONPATH": path})
    found = Kernel(manager)
    try:
        yield found
    finally:
        found.client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def test_a_step_is_interrupted_and_the_next_one_works_and_the_kernel_ends_well(kernel: Kernel) -> None:
    assert kernel.run(PREPARE) == "True\n"
    for _ in range(2):
        raised = []
        is_sent = False
        for message in kernel.messages(SLOW):
            if message["msg_type"] == "stream" and not is_sent:  # a body runs
                kernel.manager.interrupt_kernel()
                is_sent = True
            if message["msg_type"] == "error":
                raised.append(message["content"]["ename"])
        assert raised == ["KeyboardInterrupt"]
        assert kernel.run(AGAIN) == "True\n"
    process = kernel.manager.provisioner.process
    kernel.client.shutdown()
    assert process.wait(TIMEOUT_S) == 0, "the kernel ends when it is told to"
