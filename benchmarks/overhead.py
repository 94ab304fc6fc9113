"""Times what a runtime adds to each point task: a chain of index tasks over two devices, each of which does nothing.

    python benchmarks/overhead.py                    # a table, and docs/benchmarks.md rewritten
    python benchmarks/overhead.py --json -           # or FILE; one JSON object

- `maniple_us_per_task`: the whole way of a step through the realm engine, from `run` to outputs, warm;
- `traced_us_per_task`: the same while a trace is recorded, as its own event of the step tells;
- `recording_us_per_task`: what the trace takes after each step to put its events together;
- `floor_us_per_task`: the same spawn list with a Python function that does nothing as every task: Realm and the interpreter alone;
- `legate_us_per_task`: the same chain as Legate manual tasks, in a process of its own.

Medians, in microseconds of wall time per point task, issue and execution together. Each point task waits for the one before it.
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
from typing import Any, Final

import orjson
import torch

from maniple.engine.realm import RealmEngine
from maniple.engine.realm.library import load_realm
from maniple.engine.realm.process import PROCESS
from maniple.engine.realm.schedule import schedule
from maniple.engine.realm.spawn_list import Spawn, SpawnList
from maniple.ir import parse_program
from maniple.lower import lower
from maniple.mesh import Mesh
from maniple.taskgraph import TaskGraph
from maniple.trace import Trace

sys.path.insert(0, str(Path(__file__).parent))
from pages import ROOT, machine, markdown, replace_table

DEVICES: Final = 2
ROWS: Final = {
    "floor_us_per_task": "floor",
    "maniple_us_per_task": "Maniple, engine realm",
    "traced_us_per_task": "the same, recording a trace",
    "legate_us_per_task": "Legate, manual tasks",
}
LEGATE_CONFIG: Final = "--cpus 2 --gpus 0 --omps 0 --utility 1 --sysmem 500"


def median_us(run: Callable[[], object], num_tasks: int, repeats: int) -> float:
    """Return the median microseconds per task of a function that runs `num_tasks`; it is warmed up first."""
    times = []
    for number in range(repeats + 2):
        start = time.perf_counter()
        run()
        if number >= 2:
            times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times) / num_tasks


def chain(length: int) -> TaskGraph:
    """Return a graph of `length` index tasks, each of which reads what the one before it wrote."""
    lines = ["program {", '  in %x0: f32[8]{dp} parameter "x"']
    # a segment ends where the phase changes, so that every op is a task
    lines += [f"  %x{n + 1}: f32[8]{{dp}} = negate(%x{n}) {('forward', 'backward')[n % 2]}" for n in range(length)]
    lines += [f'  out %x{length} "x"', "}"]
    mesh = Mesh.parse(f"dp={DEVICES}")
    graph = lower(parse_program("\n".join(lines)), mesh, mesh.names)
    assert len(graph.tasks) == length
    return graph


def identity(*_: object) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return a body that returns its operand."""
    return lambda *operands: (operands[-1],)  # a destination comes last


def maniple_us(length: int, repeats: int) -> dict[str, float]:
    """Return what the engine takes per point task, without and with a trace, and the floor."""
    graph, engine, inputs = chain(length), RealmEngine(identity, DEVICES), {"x": torch.ones(8)}
    num_tasks = DEVICES * length
    engine_us = median_us(lambda: engine.run(graph, inputs), num_tasks, repeats)
    trace = Trace()

    def traced() -> None:
        with trace.step(trace.num_steps):
            engine.run(graph, inputs, trace)

    whole_us = median_us(traced, num_tasks, repeats)
    steps = [event.duration_ns for event in trace if event.work.kind == "step"]
    traced_us = statistics.median(steps[2:]) / 1000 / num_tasks
    with PROCESS.runtime(DEVICES) as (runtime, helper):
        spawns = [Spawn(point.device, point.after) for point in schedule(graph)]
        listed = SpawnList(runtime, helper, DEVICES, spawns, lambda _: True)
        floor_us = median_us(listed.run, num_tasks, repeats)
    found = {"maniple": engine_us, "traced": traced_us, "recording": whole_us - traced_us, "floor": floor_us}
    return {f"{name}_us_per_task": value for name, value in found.items()}


def legate_us(length: int, repeats: int) -> float:
    """Return what Legate takes per point task. It starts Legate's runtime in this process."""
    os.environ.update({"LEGATE_AUTO_CONFIG": "0", "LEGATE_CONFIG": LEGATE_CONFIG})
    load_realm()  # with what stands in for the CUDA driver, where there is none
    from legate.core import get_legate_runtime, types
    from legate.core.task import InputStore, OutputStore, task

    # Legate reads the annotations, which must be types and not their names
    def nothing(x, y):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        pass

    nothing.__annotations__ = {"x": InputStore, "y": OutputStore, "return": None}
    body, runtime = task(nothing), get_legate_runtime()
    stores = [runtime.create_store(types.float32, (DEVICES, 4)) for _ in range(2)]
    for store in stores:
        runtime.issue_fill(store, 0.0)
    parts = [store.partition_by_tiling((1, 4)) for store in stores]

    def run() -> None:
        for number in range(length):
            made = runtime.create_manual_task(body.library, body.task_id, (DEVICES, 1))
            made.add_input(parts[number % 2])
            made.add_output(parts[1 - number % 2])
            made.execute()
        runtime.issue_execution_fence(block=True)

    return median_us(run, DEVICES * length, repeats)


def measure(length: int, repeats: int) -> dict[str, Any]:
    """Return all figures."""
    own = maniple_us(length, repeats)
    command = [sys.executable, str(Path(__file__).resolve()), "--legate", "--length", str(length), "--repeats", str(max(repeats // 4, 3))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"Legate failed:\n{done.stderr}")
    found = float(done.stdout.split()[-1])
    return {
        **own,
        "legate_us_per_task": found,
        "legate_over_maniple": found / own["maniple_us_per_task"],
        "point_tasks": DEVICES * length,
        "load_average": os.getloadavg()[0],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=200, metavar="N", help="index tasks in the chain")
    parser.add_argument("--repeats", type=int, default=40, metavar="N", help="chains timed")
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE", help="write one JSON object, to standard output by default")
    parser.add_argument("--legate", action="store_true", help="time Legate only, in this process, and print one number")
    given = parser.parse_args(arguments)
    if given.legate:
        print(legate_us(given.length, given.repeats))
        return
    found = measure(given.length, given.repeats)
    if given.json:
        text = orjson.dumps(found, option=orjson.OPT_INDENT_2).decode()
        print(text) if given.json == "-" else Path(given.json).write_text(text + "\n", encoding="utf-8")
        return
    print("\n".join(f"{name:24}{value:10.1f}" for name, value in found.items()))
    rows = [(label, f"{found[name]:.1f}", f"{found[name] / found['maniple_us_per_task']:.2f}") for name, label in ROWS.items()]
    note = f"Medians over {found['point_tasks']} point tasks. {machine()}."
    text = markdown(("per point task", "us", "of Maniple's time"), rows, right="us,of Maniple's time")
    replace_table(ROOT / "docs" / "benchmarks.md", "overhead", f"{text}\n\n{note}")


if __name__ == "__main__":
    main()
