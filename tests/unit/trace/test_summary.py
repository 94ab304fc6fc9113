"""The figures of a trace."""

from __future__ import annotations

import pytest

from maniple.trace import Trace, TraceSummary, Work, summarize
from maniple.trace.trace import DISPATCH

F = Work("a", "compute", "dot_general", "forward")
B = Work("b", "collective", "all_reduce", "backward")


def steps(count: int) -> Trace:
    """Return steps of 100 ns: 10 before the first task is ready, 20 after the last one."""
    trace = Trace()
    for step in range(count):
        at = 1000 * step
        for work, lane, start, end, ready in (
            (Work("step", "step"), "main/step", 0, 100, 0),
            (Work("bind", "runtime"), "main/runtime", 0, 10, 0),
            (Work("wait", "wait"), "main/runtime", 10, 80, 10),
            (DISPATCH, "cpu0/runtime", 10, 15, 10),
            (F, "cpu0/compute", 15, 45, 10),
            (F, "cpu1/compute", 10, 30, 10),
            (B, "cpu1/compute", 45, 80, 45),
        ):
            trace.append(work, lane, at + start, at + end, step=step, ready_ns=at + ready)
    return trace


@pytest.mark.parametrize("count", [1, 3])
def test_shares_and_seconds(count: int) -> None:
    found = summarize(steps(count), "t.json")
    assert (found.num_steps, found.num_tasks, found.file) == (count, 3 * count, "t.json")
    assert found.step_s == pytest.approx(100e-9)
    assert found.phase_s == pytest.approx({"forward": 50e-9, "backward": 35e-9})
    assert found.runtime_s == pytest.approx({"bind": 10e-9, "dispatch": 5e-9})
    first, second = found.lanes
    assert (first.lane, first.num_tasks, second.lane, second.num_tasks) == ("cpu0/compute", count, "cpu1/compute", 2 * count)
    assert (first.busy_share, first.dispatch_share, first.serial_share, first.idle_share) == pytest.approx((0.3, 0.05, 0.3, 0.35))
    assert (second.busy_share, second.dispatch_share, second.serial_share, second.idle_share) == pytest.approx((0.55, 0.0, 0.3, 0.15))
    assert found.runtime_share == pytest.approx((0.35 + 0.30) / 2)


def test_a_trace_without_steps_is_measured_from_its_first_event_to_its_last() -> None:
    trace = Trace()
    trace.append(F, "cpu0/compute", 10, 30, ready_ns=5)
    found = summarize(trace)
    assert found.step_s == pytest.approx(25e-9)
    assert found.lanes[0].busy_share == pytest.approx(0.8)
    assert found.lanes[0].serial_share == 0


def test_no_events() -> None:
    assert summarize(Trace(), "x") == TraceSummary(file="x")
