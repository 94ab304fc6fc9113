"""Order and preconditions of point tasks, where data lies, and the list that is issued."""

from __future__ import annotations

import itertools
import threading
import time

import pytest
import torch
from graphs import mesh_texts, random_graph, small_graph, small_inputs

from maniple.engine.realm import RealmEngine
from maniple.engine.realm.placement import Placement, rectangle
from maniple.engine.realm.process import PROCESS
from maniple.engine.realm.schedule import PointTask, schedule
from maniple.engine.realm.spawn_list import Spawn, SpawnList
from maniple.kernels.torch import compile_program
from maniple.ops.localize import Destination, LocalProgram
from maniple.taskgraph import TaskGraph
from maniple.taskgraph.regions import Memory


def ancestors(points: list[PointTask]) -> list[set[int]]:
    found: list[set[int]] = []
    for point in points:
        found.append(set(point.after).union(*(found[other] for other in point.after)))
    return found


def required(graph: TaskGraph) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the pairs of (task, device) that edges order, directly or not, taken point by point."""
    mesh, numbers = graph.mesh, {task.name: number for number, task in enumerate(graph.tasks)}
    before: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for number, task in enumerate(graph.tasks):
        for device, point in enumerate(mesh.points()):
            direct = {
                (numbers[edge.before], mesh.device(other))
                for edge in graph.edges if edge.after == task.name for other in mesh.group(point, edge.axes)
            }  # fmt: skip
            before[number, device] = direct.union(*(before[other] for other in direct))
    return [(first, second) for second, found in before.items() for first in found]


@pytest.mark.parametrize(("seed", "mesh_text"), list(enumerate(mesh_texts(14))))
def test_points_wait_for_all_that_edges_say(seed: int, mesh_text: str) -> None:
    graph, _ = random_graph(seed, mesh_text)
    points = schedule(graph)
    memory, devices = Memory(graph.mesh, graph.shared), list(graph.mesh.points())
    at = {(point.task, point.device): number for number, point in enumerate(points)}
    for number, task in enumerate(graph.tasks):
        for device, point in enumerate(devices):
            assert ((number, device) in at) == any(memory.writes(task, a, point) for a in task.accesses if a.privilege == "write")
    before = ancestors(points)
    assert all(set(point.after) <= set(range(number)) for number, point in enumerate(points))
    for first, second in required(graph):
        if first in at and second in at:
            assert at[first] in before[at[second]], f"{second} does not wait for {first}"


def test_points_that_wait_for_the_same_share_a_merge() -> None:
    with PROCESS.runtime(2) as (runtime, helper):
        spawns = [Spawn(0), Spawn(1), Spawn(2), *(Spawn(device, (0, 1, 2)) for device in range(4)), Spawn(0, (3,))]
        ran: list[int] = []
        listed = SpawnList(runtime, helper, 2, spawns, lambda number: not ran.append(number))
        assert listed.num_instructions == len(spawns) + 1 + 1  # one merge for four points, one at the end
        for _ in range(3):
            assert listed.run()
            assert sorted(ran[:3]) == [0, 1, 2]
            assert sorted(ran) == list(range(8))
            assert ran.index(7) > ran.index(3)
            ran.clear()


def test_an_empty_list_is_done_at_once() -> None:
    with PROCESS.runtime(1) as (runtime, helper):
        assert SpawnList(runtime, helper, 1, [], lambda _: False).run()


def test_the_highest_priority_runs_next() -> None:
    with PROCESS.runtime(1) as (runtime, helper):
        ran: list[int] = []

        def body(number: int) -> bool:
            ran.append(number)
            if number == 0:
                time.sleep(0.1)  # until the others are issued
            return True

        listed = SpawnList(runtime, helper, 1, [Spawn(0), *(Spawn(0, (0,)) for _ in range(5))], body)
        listed.prioritize([0, 1, 5, 3, 4, 2])
        assert listed.run()
        assert ran == [0, 2, 4, 3, 5, 1]


def test_a_body_that_fails_keeps_the_others_from_running() -> None:
    with PROCESS.runtime(2) as (runtime, helper):
        ran: list[int] = []
        listed = SpawnList(runtime, helper, 2, [Spawn(0), Spawn(0, (0,)), Spawn(1, (0, 1))], lambda number: bool(ran.append(number)))
        for _ in range(2):
            assert not listed.run()
            assert ran == [0]
            ran.clear()


def test_processors_are_distinct_threads_and_devices_take_turns() -> None:
    threads: dict[int, int] = {}

    def body(number: int) -> bool:
        threads[number] = threading.get_native_id()
        return True

    with PROCESS.runtime(4) as (runtime, helper):
        assert SpawnList(runtime, helper, 4, [Spawn(device) for device in range(8)], body).run()
    assert len(set(threads.values())) == 4
    assert all(threads[device] == threads[device + 4] for device in range(4))


def test_state_is_read_as_views_and_pieces_are_not_copied() -> None:
    seen: list[int] = []

    def spy(local: LocalProgram, destinations: tuple[Destination, ...] = ()) -> object:
        body = compile_program(local, destinations)

        def run(*operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
            seen.extend(x.untyped_storage().data_ptr() for x in operands)
            return body(*operands)

        return run

    given = small_inputs()
    RealmEngine(spy, 2).run(small_graph("dp=2", "dp"), given)  # type: ignore[arg-type]
    # two points read their half of w; the one that multiplies reads all of u
    assert seen.count(given["w"].untyped_storage().data_ptr()) == 2
    assert seen.count(given["u"].untyped_storage().data_ptr()) == 1


def test_only_what_is_read_across_pieces_is_allocated() -> None:
    placement = Placement(small_graph("dp=2", "dp"))
    # a is written by halves and read whole; c is written whole
    assert [(a.shape, a.returned) for a in placement.allocations] == [((5,), False)]
    assert len(placement.temporary) == 1


@pytest.mark.parametrize(
    ("wanted", "have", "expected"),
    [
        (((2, 4),), ((0, 8),), (2, 4)),
        (((2, 4),), ((2, 4), (6, 8)), (0, 2)),
        (((6, 8),), ((2, 4), (6, 8)), (2, 4)),
        (((3, 4), (6, 7)), ((2, 4), (6, 8)), (1, 3)),
        (((2, 3), (6, 7)), ((2, 4), (6, 8)), None),
        (((2, 5),), ((0, 4),), None),
        ((), ((0, 4),), None),
    ],
)
def test_rectangle(wanted: tuple[tuple[int, int], ...], have: tuple[tuple[int, int], ...], expected: tuple[int, int] | None) -> None:
    found = rectangle((wanted,), (have,))
    assert found == (None if expected is None else (slice(*expected),))
    if found is not None:
        elements = [i for lo, hi in have for i in range(lo, hi)]
        assert elements[found[0]] == list(itertools.chain.from_iterable(range(lo, hi) for lo, hi in wanted))
