"""Acceptance: bad input is one clear error on standard error and exit status 2, without a traceback; `--debug` shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from acceptance_harness import maniple

pytestmark = pytest.mark.usefixtures("captured_once", "explained_once")

STRATEGIES: Final = {
    "unknown axis": ("pp=2", "unknown axis 'pp'"),
    "misspelt axis": ("dpp=2", "did you mean dp=N"),
    "size 0": ("dp=0", "size 0"),
    "negative size": ("tp=-1", "size -1"),
    "no size": ("dp", "cannot read 'dp'"),
    "axis twice": ("dp=2 dp=2", "twice"),
    "unknown level": ("dp=2 zero=4", "zero=4"),
    "more ways than rows": ("dp=4096", "4096"),
    "pin that matches nothing": ("dp=2 pin:nosuch.tensor={dp,_}", "'nosuch.tensor' matches nothing"),
    "placement that matches nothing": ("tp=2 place:nosuch.*={tp,_}", "'nosuch.*' matches nothing"),
    "pin of another rank": ("dp=2 pin:batch.x={dp}", "dims"),
    "placement on an axis that there is not": ("dp=2 place:*.weight={tp,_}", "axis 'tp'"),
    "layout that does not parse": ("dp=2 pin:batch.x={dp:,_}", "pin:batch.x"),
    "no such file": ("nowhere.toml", "nowhere.toml"),
}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("command", ["check", "explain"])
def test_strategy(name: str, command: str) -> None:
    text, words = STRATEGIES[name]
    refused([command, "mlp", "--strategy", text], words)


TOML: Final = {
    "no TOML": ("axes = [", "not TOML"),
    "unknown key": ("[axes]\ndp = 2\n[placement]\n", "unknown key 'placement'"),
    "size that is no number": ('[axes]\ndp = "two"\n', "dp"),
    "entry without a layout": ('[axes]\ndp = 2\n[[pins]]\ntensor = "batch.x"\n', "sharding"),
}


@pytest.mark.parametrize("name", TOML)
def test_strategy_file(name: str, tmp_path: Path) -> None:
    content, words = TOML[name]
    path = tmp_path / "strategy.toml"
    path.write_text(content, encoding="utf-8")
    refused(["check", "mlp", "--strategy", str(path)], words)


MODELS: Final = {
    "unknown model": ("gtp2", "did you mean gpt2"),
    "unknown size": ("gpt2:huge", "no size 'huge'"),
    "no such file": ("nowhere.py:make", "nowhere.py"),
    "no function": ("nowhere.py", "FUNCTION"),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("command", ["train", "check", "explain"])
def test_model(name: str, command: str) -> None:
    model, words = MODELS[name]
    refused([command, model, "--strategy", "dp=2"], words)


CONFIGS: Final = {
    "no JSON": ("{", "cannot be read as JSON"),
    "no object": ("[]", "not an object"),
    "no class": ("{}", "does not say which class"),
    "unknown class": ('{"architectures": ["GPT2LMHeadModle"]}', "did you mean GPT2LMHeadModel"),
    "class of the file's own": ('{"architectures": ["Own"], "auto_map": {"AutoModel": "own.Own"}}', "has no class 'Own'"),
    "class that cannot train": ('{"architectures": ["GPT2PreTrainedModel"]}', "no forward pass"),
    "class that is no model": ('{"architectures": ["GPT2Config"]}', "is not a model"),
    "wrong type": ('{"architectures": ["GPT2LMHeadModel"], "n_embd": "wide"}', "n_embd"),
    "sizes that do not fit": ('{"architectures": ["GPT2LMHeadModel"], "n_embd": 15, "n_head": 4}', "cannot be made"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_config(name: str, tmp_path: Path) -> None:
    content, words = CONFIGS[name]
    (tmp_path / "config.json").write_text(content, encoding="utf-8")
    for command in ("train", "check", "explain"):
        refused([command, f"hf:{tmp_path}", "--strategy", "dp=2"], words)


def test_no_config(tmp_path: Path) -> None:
    refused(["check", f"hf:{tmp_path}", "--strategy", "dp=2"], "no file")


OPTIONS: Final = {
    "unknown engine": (["--engine", "warp"], "unknown engine 'warp'"),
    "unknown dtype": (["--dtype", "float8"], "unknown dtype 'float8'"),
    "no rows": (["--batch", "0"], "batch=0"),
    "sequence for rows": (["--seq", "8"], "no sequence"),
    "dropout": (["--dropout", "1.5"], "dropout=1.5"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_option(name: str) -> None:
    arguments, words = OPTIONS[name]
    refused(["check", "mlp", "--strategy", "dp=2", *arguments], words)


FILE: Final = """
import torch
from torch import nn


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x):
        y = self.fc(x)
        return y if y.sum() > 0 else -y


def finish(loss, optimizer):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def returns_nothing(model, optimizer, batch):
    finish(model(batch).sum(), optimizer)


def branches_on_the_loss(model, optimizer, batch):
    loss = model(batch).square().sum()
    if loss.item() > 1:  # the branch
        loss = loss * 2
    return finish(loss, optimizer)


def branches_in_the_model(model, optimizer, batch):
    return finish(model(batch).sum(), optimizer)


def prints(model, optimizer, batch):
    loss = model(batch).square().sum()
    print(float(loss))  # the branch
    return finish(loss, optimizer)


def counts(model, optimizer, batch):
    model.calls += 1
    return finish(model(batch).sum(), optimizer)


def divides_by_zero(model, optimizer, batch):
    return finish(model(batch).sum() / (1 // 0), optimizer)  # the branch


def no_mapping(model, optimizer, batch):
    return finish(torch.pdist(model(batch)).sum(), optimizer)  # the branch


def parts(step, model=None):
    model = model or nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return step, model, optimizer, torch.randn(8, 4)


def nothing(): return parts(returns_nothing)
def loss_branch(): return parts(branches_on_the_loss)
def model_branch(): return parts(branches_in_the_model, Gate())
def printed(): return parts(prints)
def counted():
    model = nn.Linear(4, 4)
    model.calls = 0
    return parts(counts, model)
def divided(): return parts(divides_by_zero)
def unmapped(): return parts(no_mapping)
def three(): return parts(returns_nothing)[:3]
def fails(): raise RuntimeError("no data today")
def crowd():
    return parts(branches_in_the_model)[:3] + ("a batch",)


def scheduled():
    def step(model, optimizer, batch):
        loss = finish(model(batch).sum(), optimizer)
        scheduler.step()
        return loss

    made = parts(step)
    scheduler = torch.optim.lr_scheduler.StepLR(made[2], 1)
    return made
"""

STEPS: Final = {
    "nothing": "returns no tensor",
    "scheduled": "scheduler",
    "loss_branch": "step.py:",
    "model_branch": "step.py:14",
    "printed": "step.py:",
    "counted": "calls",
    "divided": "ZeroDivisionError",
    "unmapped": "pdist",
    "three": "not four things",
    "fails": "no data today",
    "nosuch": "no function 'nosuch'",
}


@pytest.mark.parametrize("function", STEPS)
def test_step(function: str, tmp_path: Path) -> None:
    path = tmp_path / "step.py"
    path.write_text(FILE, encoding="utf-8")
    message = refused(["check", f"{path}:{function}", "--strategy", "dp=2"], STEPS[function])
    if function in {"loss_branch", "printed", "divided", "unmapped"}:
        lines = [at for at, line in enumerate(FILE.splitlines(), 1) if line.endswith("# the branch")]
        assert f"step.py:{lines[['loss_branch', 'printed', 'divided', 'unmapped'].index(function)]}" in message
    if function in {"nothing", "scheduled", "loss_branch", "model_branch", "printed", "counted"}:
        assert "\n  try: " in message


def test_a_file_that_does_not_run(tmp_path: Path) -> None:
    path = tmp_path / "step.py"
    path.write_text("import torch\n\ndef make(:\n", encoding="utf-8")
    assert "step.py:3" in refused(["check", f"{path}:make", "--strategy", "dp=2"], "SyntaxError")


def refused(arguments: list[str], words: str) -> str:
    """Check that the command line refuses in one message that has `words` in it, and return the message."""
    result = maniple(*arguments, "--json")  # without it progress is on standard error too
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("error: ") == 1
    assert "Traceback" not in result.stderr
    assert words in result.stderr
    debugged = maniple(*arguments, "--json", "--debug")
    assert debugged.exit_code == 2
    assert "Traceback (most recent call last)" in debugged.stderr
    assert words in debugged.stderr
    return str(result.stderr)
