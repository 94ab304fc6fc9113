"""Times a training step against what one would pick instead on one machine, on the same work.

    python benchmarks/train.py                       # a table, and docs/benchmarks.md and README.md rewritten
    python benchmarks/train.py --json -              # or FILE; one JSON object, pages left alone

The model is a GPT of 14 million parameters (`gpt2:14m`, the dims of Pythia-14M), 8 rows of 128 tokens, AdamW, float32. Contenders, two
cores each:

- maniple: `dp=2` on Realm, the training step as it is;
- ddp: DistributedDataParallel, two processes over gloo, 4 rows each;
- eager: PyTorch with two threads, and one.

Each stands in a process of its own, warmed up; they take turns, a few steps at a time, while the others wait. Reported are medians of
all timed steps. The losses after the same number of steps show that the work is the same. The floor is what the step's floating-point
operations would take at the speed of one large matrix product on both cores.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, Final

import orjson
import torch

from maniple.api import parallelize
from maniple.api.workloads import load
from maniple.commands import WorkloadConfig
from maniple.ops.catalog import definition

sys.path.insert(0, str(Path(__file__).parent))
from pages import ROOT, machine, markdown, replace_table

CORES: Final = 2
TURN: Final = 2
"""Steps in a row."""
CONTENDERS: Final = {
    "maniple": "Maniple, `dp=2` on Realm",
    "ddp": "DDP, 2 processes over gloo",
    "eager": "PyTorch eager, 2 threads",
    "eager1": "PyTorch eager, 1 thread",
}


def workload(model: str) -> Any:
    """Return the model with its data and training step."""
    return load(WorkloadConfig(model=model, dtype="float32"))


def serve(step: Callable[[Any], Any], batches: Callable[[int], Any]) -> None:
    """Run as many steps as each line of standard input says; answer each line with seconds and losses."""
    number = 0
    for line in sys.stdin:
        times, losses = [], []
        for _ in range(int(line)):
            batch = batches(number)
            start = time.perf_counter()
            loss = step(batch)
            times.append(time.perf_counter() - start)
            losses.append(float(loss.detach()))
            number += 1
        print(orjson.dumps({"times": times, "losses": losses}).decode(), flush=True)


def maniple(model: str) -> None:
    """Serve Maniple's steps."""
    torch.set_num_threads(1)
    made = workload(model)
    serve(parallelize(made.step, made.model, made.optimizer, strategy=f"dp={CORES}", engine=f"realm:{CORES}"), made.batches)


def eager(model: str, threads: int) -> None:
    """Serve PyTorch's steps."""
    torch.set_num_threads(threads)
    made = workload(model)
    serve(lambda batch: made.step(made.model, made.optimizer, batch), made.batches)


def ddp(model: str) -> None:
    """Serve the steps of processes that each take a part of the rows; the first one starts the others."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    rank = int(os.environ.setdefault("RANK", "0"))
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, CORES, is_master=True, wait_for_workers=False)
        environment = os.environ | {"STORE_PORT": str(store.port)}
        for other in range(1, CORES):
            subprocess.Popen([*command("ddp", model)], env=environment | {"RANK": str(other)}, stdin=subprocess.DEVNULL)
    else:
        store = dist.TCPStore("127.0.0.1", int(os.environ["STORE_PORT"]), CORES, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=CORES)
    made = workload(model)
    wrapped = DistributedDataParallel(made.model)

    def part(batch: dict[str, Any]) -> dict[str, Any]:
        return {key: tensor.chunk(CORES)[rank] for key, tensor in batch.items()}

    def step(batch: Any) -> Any:
        if rank == 0:
            dist.broadcast(torch.ones(1), 0)  # the others wait for it
        loss = made.step(wrapped, made.optimizer, part(batch)).detach()
        dist.all_reduce(loss)
        return loss / CORES

    if rank == 0:
        serve(step, made.batches)
        dist.broadcast(torch.zeros(1), 0)
        return
    go, number = torch.ones(1), 0
    while dist.broadcast(go, 0) is None and go.item():
        step(made.batches(number))
        number += 1


def command(contender: str, model: str) -> list[str]:
    """Return the command of a contender's process."""
    return [sys.executable, str(Path(__file__).resolve()), "--contender", contender, "--model", model]


def matmul_flops_per_s() -> float:
    """Return how fast one core multiplies matrices that fit its cache well, the best of some tries."""
    torch.set_num_threads(1)
    a, b = torch.randn(512, 512), torch.randn(512, 512)
    best = float("inf")
    for _ in range(30):
        start = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - start)
    return 2 * 512**3 / best


def step_flops(model: str) -> int:
    """Return the floating-point operations of the contractions of a step: matrix products and attention."""
    made = load(WorkloadConfig(model=model, dtype="float32"))
    step = parallelize(made.step, made.model, made.optimizer, strategy="", engine="reference")
    program = step.compile(made.batch).plan.program
    return sum(definition(op.name).flops(op) for op in program.ops if definition(op.name).is_contraction or op.name.startswith("attention"))


def ask(process: subprocess.Popen[str], steps: int) -> dict[str, list[float]]:
    """Let a contender run some steps."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{steps}\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        raise SystemExit(f"{process.args} failed")
    found: dict[str, list[float]] = orjson.loads(answer)
    return found


def measure(model: str, rounds: int, tell: IO[str]) -> dict[str, Any]:
    """Return all figures."""
    one_core = matmul_flops_per_s()
    threads = {"eager": CORES}
    processes = {
        name: subprocess.Popen(
            command(name, model),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(threads.get(name, 1))},
        )
        for name in CONTENDERS
    }
    times: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    losses: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    try:
        for name, process in processes.items():
            print(f"warming up {name}", file=tell)
            losses[name] += ask(process, 4)["losses"]
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=tell)
            for name, process in processes.items():
                answer = ask(process, TURN)
                times[name] += answer["times"]
                losses[name] += answer["losses"]
    finally:
        for process in processes.values():
            process.communicate()
    seconds = {name: statistics.median(found) for name, found in times.items()}
    flops = step_flops(model)
    return {
        **{f"{name}_s": value for name, value in seconds.items()},
        **{f"{name}_over_maniple": seconds[name] / seconds["maniple"] for name in CONTENDERS if name != "maniple"},
        "floor_s": flops / (CORES * one_core),
        "gflops": flops / 1e9,
        "core_gflops_per_s": one_core / 1e9,
        "loss": losses["maniple"][-1],
        "max_loss_difference": max(abs(a - b) for name in CONTENDERS for a, b in zip(losses[name], losses["eager"], strict=True)),
        "timed_steps": TURN * rounds,
        "load_average": os.getloadavg()[0],
    }


def table(found: dict[str, Any]) -> str:
    """Return the figures as a table with what they mean."""
    rows = [
        (
            label,
            f"{1000 * found[f'{name}_s']:.0f}",
            f"{found.get(f'{name}_over_maniple', 1):.2f}",
            f"{found[f'{name}_s'] / found['floor_s']:.2f}",
        )
        for name, label in CONTENDERS.items()
    ]
    note = (
        f"Floor: {found['gflops']:.1f} GFLOP of matrix products and attention on {CORES} cores of {found['core_gflops_per_s']:.0f} "
        f"GFLOP/s: {1000 * found['floor_s']:.0f} ms. Medians of {found['timed_steps']} steps; losses differ by "
        f"{found['max_loss_difference']:.1e} at most. "
        f"{machine()}."
    )
    return markdown(("step", "ms", "of Maniple's time", "of the floor"), rows, right="ms,of Maniple's time,of the floor") + f"\n\n{note}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8, metavar="N", help=f"turns of each contender, {TURN} steps each")
    parser.add_argument("--model", default="gpt2:14m", help="of the zoo")
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE", help="write one JSON object, to standard output by default")
    parser.add_argument("--contender", choices=tuple(CONTENDERS), help="serve one contender's steps")
    given = parser.parse_args(arguments)
    if given.contender:
        servers = {"maniple": maniple, "ddp": ddp, "eager": lambda m: eager(m, CORES), "eager1": lambda m: eager(m, 1)}
        servers[given.contender](given.model)
        return
    found = measure(given.model, given.rounds, sys.stderr)
    if given.json:
        text = orjson.dumps(found, option=orjson.OPT_INDENT_2).decode()
        print(text) if given.json == "-" else Path(given.json).write_text(text + "\n", encoding="utf-8")
        return
    print(table(found))
    for page in ("README.md", "docs/benchmarks.md"):
        replace_table(ROOT / page, "train", table(found))


if __name__ == "__main__":
    main()
