"""The runtime and the process: restart, fork, DataLoader workers, leaving the interpreter in every way."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from graphs import random_graph, same, small_graph, small_inputs
from torch.utils.data import DataLoader, TensorDataset

from maniple.base.errors import EngineError
from maniple.engine.realm import RealmEngine
from maniple.engine.realm.library import build
from maniple.engine.realm.process import PROCESS
from maniple.kernels.torch import compile_program

HERE = Path(__file__).parent
TIMES = 3

WAYS: dict[str, tuple[str, int]] = {
    # how a child leaves, and what os.waitstatus_to_exitcode says of it
    "normal": ("run()", 0),
    "never_started": ("", 0),
    "exception": ("run(); raise ValueError('on purpose')", 1),
    "sys.exit": ("run(); sys.exit(3)", 3),
    "sys.exit_in_a_body": ("run(exit_3)", 3),
    "os._exit": ("run(); os._exit(4)", 4),
    "os._exit_while_bodies_run": ("threading.Timer(0.05, os._exit, (5,)).start(); run(slow)", 5),
    "SIGTERM": ("run(); os.kill(os.getpid(), signal.SIGTERM)", -15),
    "SIGTERM_while_bodies_run": ("threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start(); run(slow)", -15),
    "SIGINT_while_bodies_run": ("threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start(); run(slow)", 1),
    "SIGTERM_handler_that_exits": (
        "exit_at_sigterm(); threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start(); run(slow)", 6,
    ),
    "a_daemon_thread_runs_steps": ("threading.Thread(target=forever, daemon=True).start(); time.sleep(0.1)", 0),
    "in_a_thread": ("thread = threading.Thread(target=run); thread.start(); thread.join()", 0),
    "sys.exit_in_a_thread": ("threading.Thread(target=lambda: (run(), sys.exit(7))).start()", 0),
    "end_while_a_thread_runs_a_step": ("threading.Thread(target=run, args=(slow,)).start(); bodies_run.wait()", 0),
    "sys.exit_while_a_thread_runs_a_step": ("threading.Thread(target=run, args=(slow,)).start(); bodies_run.wait(); sys.exit(8)", 8),
    "SIGTERM_while_a_thread_runs_a_step": (
        "threading.Thread(target=run, args=(slow,)).start(); bodies_run.wait(); os.kill(os.getpid(), signal.SIGTERM)", -15,
    ),
    "SIGTERM_while_realm_starts": ("threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGTERM)).start(); run(steps=10**6)", -15),
    "SIGINT_while_realm_starts": ("threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start(); run(steps=10**6)", 1),
    "os._exit_while_realm_starts": ("threading.Timer(0.02, os._exit, (9,)).start(); run(steps=10**6)", 9),
    "after_fork": ("run(); in_a_child(lambda: None)", 0),
    "after_fork_and_a_step_in_the_child": ("run(); in_a_child(refused)", 0),
    "a_child_exits_while_bodies_run": (
        "threading.Thread(target=run, args=(slow,)).start(); bodies_run.wait(); in_a_child(lambda: None)", 0,
    ),
    "closed_and_started_again": ("run(); PROCESS.close(); run()", 0),
}  # fmt: skip

PROGRAM = """
    import gc, json, os, signal, sys, tempfile, threading, time, traceback
    import torch
    from graphs import Wrapped, random_graph
    from maniple.base.errors import EngineError
    from maniple.engine.realm import RealmEngine
    from maniple.engine.realm.process import PROCESS
    from maniple.kernels.torch import compile_program

    graph, inputs = random_graph(5, "dp=2 tp=2")

    def run(compile=compile_program, steps=2):
        engine = RealmEngine(compile, 2)
        for _ in range(steps):
            engine.run(graph, inputs)

    bodies_run = threading.Event()

    def slow(*local):
        return Wrapped(compile_program(*local), lambda: (bodies_run.set(), time.sleep(0.03)))

    def refused():
        try:
            run()
        except EngineError:
            return
        sys.exit(10)

    def in_a_child(function):
        child = os.fork()
        if child == 0:
            function()
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def exit_3(*local):
        return lambda *operands: sys.exit(3)

    def exit_at_sigterm():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(6))

    def forever():
        while True:
            run()

    def leave(code):
        try:
            exec(code)
        except Exception:
            traceback.print_exc()
            sys.exit(1)
        except KeyboardInterrupt:
            sys.exit(1)
        sys.exit(0)

    gc.collect()
    gc.freeze()
    found = {}
    for way, code in json.loads(sys.argv[2]).items():
        with tempfile.TemporaryFile("w+") as printed:
            children = []
            for _ in range(int(sys.argv[1])):
                child = os.fork()  # of a process in which Realm has not started: saves importing PyTorch again
                if child == 0:
                    os.dup2(printed.fileno(), 2)
                    leave(code)
                children.append(child)
            codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
            printed.seek(0)
            found[way] = codes, printed.read()
    print(json.dumps(found))
"""


def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(HERE), str(HERE.parent / "engine"), *sys.path])
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True, text=True, check=False, timeout=300, env={**os.environ, "PYTHONPATH": path, **environment},
    )  # fmt: skip


@pytest.fixture(scope="module")
def left() -> dict[str, tuple[list[int], str]]:
    """Return the exit statuses of each way, and what was printed to standard error."""
    done = python(PROGRAM, str(TIMES), json.dumps({way: code for way, (code, _) in WAYS.items()}))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("way", WAYS)
def test_leaving_is_clean(way: str, left: dict[str, tuple[list[int], str]]) -> None:
    codes, printed = left[way]
    assert codes == [WAYS[way][1]] * TIMES, printed
    lines = [line for line in printed.splitlines() if not line.startswith(("Traceback", "  "))]
    assert lines == (["ValueError: on purpose"] * TIMES if way == "exception" else [])


STEP = """
    from graphs import small_graph, small_inputs
    from maniple.engine.realm import RealmEngine
    from maniple.kernels.torch import compile_program
    RealmEngine(compile_program).run(small_graph("dp=2", "dp"), small_inputs())
"""


def test_nothing_is_printed_where_nothing_is_built_yet(tmp_path: Path) -> None:
    done = python(STEP, XDG_CACHE_HOME=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert {path.name.partition("-")[0] for path in (tmp_path / "maniple").iterdir()} >= {"spawn_list", "lifecycle"}


def test_a_driver_that_is_there_is_used(tmp_path: Path) -> None:
    """A library of the driver's name, on the loader's path, stands for it."""
    built = build("libcuda_stub.c", "a driver", soname="libcuda.so.1")
    shutil.copy(built, tmp_path / "libcuda.so.1")
    code = (
        STEP
        + """
    print({line.split()[-1] for line in open("/proc/self/maps") if "libcuda" in line})
    """
    )
    done = python(code, LD_LIBRARY_PATH=str(tmp_path), XDG_CACHE_HOME=str(tmp_path))
    assert (done.stdout, done.stderr) == (f"{ {str(tmp_path / 'libcuda.so.1')} }\n", "")
    assert not list((tmp_path / "maniple").glob("libcuda*"))


def test_no_compiler_is_one_message(tmp_path: Path) -> None:
    code = """
        from maniple.cli.app import main
        main()
    """
    arguments = ("check", "mlp", "--strategy", "dp=2", "--engine", "realm")
    done = python(code, *arguments, XDG_CACHE_HOME=str(tmp_path), COLUMNS="200", PATH="/nowhere", CC="")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr[done.stderr.index("error: ") :] == (
        "error: engine 'realm' needs a C compiler when it is first used, and there is none\n"
        "  try: install gcc or clang, or set CC; engine 'reference' needs none\n"
    )
    assert "Traceback" not in done.stderr


def test_processes_started_by_spawn_have_their_own_realm(tmp_path: Path) -> None:
    graph, inputs = small_graph("dp=2", "dp"), small_inputs()
    want = RealmEngine(compile_program, 2).run(graph, inputs)
    (tmp_path / "work.py").write_text(textwrap.dedent("""
        import multiprocessing as mp
        from graphs import small_graph, small_inputs
        from maniple.engine.realm import RealmEngine
        from maniple.kernels.torch import compile_program

        def step(number):
            outputs = RealmEngine(compile_program, 2).run(small_graph("dp=2", "dp"), small_inputs())
            return {name: tensor.tolist() for name, tensor in outputs.items()}

        if __name__ == "__main__":
            here = step(0)
            with mp.get_context("spawn").Pool(2) as pool:
                assert pool.map(step, range(2)) == [here, here]
            assert step(2) == here
            print(here)
    """))  # fmt: skip
    done = python(f"import runpy; runpy.run_path({str(tmp_path / 'work.py')!r}, run_name='__main__')")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{ {name: tensor.tolist() for name, tensor in want.items()} }\n"


def test_a_legate_runtime_is_refused() -> None:
    code = """
        import ctypes
        from graphs import small_graph, small_inputs
        from maniple.base.errors import EngineError
        from maniple.engine.realm import RealmEngine
        from maniple.engine.realm.library import load_realm
        from maniple.kernels.torch import compile_program
        load_realm().realm_runtime_create(ctypes.byref(ctypes.c_void_p()))
        try:
            RealmEngine(compile_program).run(small_graph("dp=2", "dp"), small_inputs())
        except EngineError as error:
            print(error.what)
    """
    assert "has a Realm runtime already" in python(code).stdout


def test_closing_and_more_processors_start_realm_again() -> None:
    graph, inputs = random_graph(5, "dp=2 tp=2")
    engines = [RealmEngine(compile_program, number) for number in (1, 2, 3, 2)]
    want = engines[0].run(graph, inputs)
    for engine in engines * 2:
        assert same(engine.run(graph, inputs), want)
    PROCESS.close()
    for engine in engines:
        assert same(engine.run(graph, inputs), want)


def test_signal_handlers_stay_when_realm_starts_and_stops() -> None:
    seen: list[int] = []
    PROCESS.close()
    for number in (signal.SIGINT, signal.SIGUSR1):
        old = signal.signal(number, lambda number, _: seen.append(number))
        try:
            with PROCESS.runtime(1):
                signal.raise_signal(number)
            PROCESS.close()
            signal.raise_signal(number)
        finally:
            signal.signal(number, old)
    assert seen == [signal.SIGINT] * 2 + [signal.SIGUSR1] * 2


def in_child(function: Callable[[], None]) -> int:
    """Return the exit status of a forked child that runs `function`: 0 if it did, 9 if it raised, 124 if it hung for 10 s."""
    child = os.fork()
    if child == 0:
        status = 9
        try:
            function()
            status = 0
        finally:
            os._exit(status)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return 124


def test_a_forked_child_is_told_that_realm_is_gone() -> None:
    engine, graph = RealmEngine(compile_program, 2), small_graph("dp=2", "dp")
    want = engine.run(graph, small_inputs())

    def step() -> None:
        with pytest.raises(EngineError, match="forked"):
            engine.run(graph, small_inputs())

    assert in_child(step) == 0
    assert same(engine.run(graph, small_inputs()), want)


def test_a_child_forked_after_closing_starts_its_own() -> None:
    engine, graph = RealmEngine(compile_program, 2), small_graph("dp=2", "dp")
    want = engine.run(graph, small_inputs())
    PROCESS.close()

    def step() -> None:
        assert same(engine.run(graph, small_inputs()), want)
        PROCESS.close()

    assert in_child(step) == 0
    assert same(engine.run(graph, small_inputs()), want)


def test_a_data_loader_with_workers_beside_realm() -> None:
    graph, inputs = random_graph(5, "dp=2 tp=2")
    engine = RealmEngine(compile_program, 2)
    want = engine.run(graph, inputs)
    rows = torch.arange(24.0).reshape(12, 2)
    for _ in range(2):
        for number, (batch,) in enumerate(DataLoader(TensorDataset(rows), batch_size=3, num_workers=2)):
            assert torch.equal(batch, rows[3 * number : 3 * number + 3])
            assert same(engine.run(graph, inputs), want)
    subprocess.run(["true"], check=True)
    assert same(engine.run(graph, inputs), want)
