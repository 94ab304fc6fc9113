"""Traces: columns, steps, and the file form."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.base.errors import ParseError
from maniple.base.location import Location
from maniple.trace import Event, Trace, Work, chrome
from maniple.trace.chrome import parse_trace, print_trace

TASK = Work("dot.1", "compute", "dot_general", "forward", 4096, 1 << 40, Location("a b.py", 3, 'blocks.0 "x"'))
NS = st.integers(0, 1 << 50)
TEXT = st.text(max_size=12)
WORKS = st.builds(
    Work, TEXT, st.sampled_from(["compute", "collective"]), TEXT, st.sampled_from([None, "forward", "backward", "update"]),
    st.integers(0, 1 << 60), st.integers(0, 1 << 60), st.none() | st.builds(Location, TEXT, st.integers(0, 9999), TEXT),
) | st.builds(Work, TEXT, st.sampled_from(["runtime", "step"]))  # fmt: skip
LANES = st.builds(
    lambda place, what: f"{place}/{what}", st.text(string.ascii_letters, min_size=1, max_size=3), st.text(min_size=1, max_size=4)
)


@given(st.lists(st.tuples(WORKS, LANES, NS, NS, st.integers(-1, 9), st.integers(0, 9), NS), max_size=12), st.integers(0, 1 << 61))
def test_the_file_form_reads_back(rows: list[tuple[Work, str, int, int, int, int, int]], origin: int) -> None:
    trace = Trace()
    for work, lane, start, duration, device, step, waited in rows:
        begin = origin + start
        trace.append(work, lane, begin, begin + duration, device=device, step=step, ready_ns=max(origin, begin - waited))
    trace.num_steps = 7
    text = print_trace(trace)
    found = parse_trace(text)
    assert list(found) == list(trace)
    assert (found.lanes, found.num_steps) == (trace.lanes, 7)
    assert print_trace(found) == text


def test_events_keep_what_was_appended_in_order() -> None:
    trace = Trace()
    trace.append(TASK, "cpu1/compute", 100, 130, device=3, step=5, ready_ns=90)
    trace.append(Work("issue", "runtime"), "main/runtime", 10, 20)
    assert list(trace) == [
        Event(TASK, "cpu1/compute", 100, 30, 3, 5, 90),
        Event(Work("issue", "runtime"), "main/runtime", 10, 10, -1, 0, 10),
    ]
    assert trace.lanes == ["cpu1/compute", "main/runtime"]


@pytest.mark.parametrize("lane", ["", "cpu0", "/compute", "cpu0/"])
def test_lanes_say_place_and_what(lane: str) -> None:
    with pytest.raises(ParseError, match="lane"):
        Trace().append(TASK, lane, 0, 1)


def test_a_step_holds_its_events_and_appends_the_rest_when_it_is_over() -> None:
    trace, ran = Trace(), list[int]()

    def append() -> None:
        ran.append(len(trace))
        trace.append(TASK, "cpu0/compute", 0, 1)

    with trace.step(4):
        trace.later(append)
        with trace.span("issue"):
            pass
        assert not ran
    assert ran == [2]  # after the step's own event
    assert [(event.work.name, event.step) for event in trace] == [("issue", 4), ("step", 4), ("dot.1", 4)]
    assert trace.num_steps == 1
    trace.later(append)
    assert ran == [2, 3]


def test_a_step_that_raises_is_recorded_but_not_counted() -> None:
    trace = Trace()
    with pytest.raises(ZeroDivisionError), trace.step(0), trace.span("issue"):
        raise ZeroDivisionError
    assert [event.work.name for event in trace] == ["issue", "step"]
    assert trace.num_steps == 0


def test_viewers_find_what_the_format_asks_for() -> None:
    trace = Trace()
    trace.append(TASK, "cpu0/compute", 5_000, 7_500, device=2, ready_ns=4_000)
    trace.append(Work("dispatch", "runtime"), "cpu0/runtime", 4_000, 5_000)
    events = json.loads(print_trace(trace))["traceEvents"]
    names = {(e["name"], e["args"]["name"]) for e in events if e["ph"] == "M"}
    assert names == {("process_name", "cpu0"), ("thread_name", "compute"), ("thread_name", "runtime")}
    task, dispatch = (e for e in events if e["ph"] == "X")
    assert (task["name"], task["cat"], task["ts"], task["dur"]) == ("dot.1", "compute", 1.0, 2.5)
    assert task["pid"] == dispatch["pid"]
    assert task["tid"] != dispatch["tid"]
    assert task["args"] == {
        "step": 0, "device": 2, "op": "dot_general", "phase": "forward", "bytes": 4096, "flops": 1 << 40, "waited_us": 1.0,
        "location": '"a b.py":3 @"blocks.0 \\"x\\""',
    }  # fmt: skip


def sample() -> dict[str, Any]:
    trace = Trace()
    trace.append(TASK, "cpu0/compute", 5_000, 7_500, device=2, ready_ns=4_000)
    found: dict[str, Any] = json.loads(print_trace(trace))
    return found


CHANGES: dict[str, Any] = {
    "ph": "B", "cat": "import os", "name": 3, "ts": "0", "dur": -1.0, "pid": 99, "tid": None, "args": [],
}  # fmt: skip
ARGUMENTS: dict[str, Any] = {
    "step": None, "device": True, "bytes": 1 << 70, "flops": 0.5, "phase": "sideways", "location": "a.py:3", "waited_us": 1e300, "op": None,
}  # fmt: skip


@pytest.mark.parametrize("key", CHANGES)
def test_a_bad_event_is_named(key: str) -> None:
    found = sample()
    found["traceEvents"][2][key] = CHANGES[key]
    with pytest.raises(ParseError, match="event 2: "):
        parse_trace(json.dumps(found))


@pytest.mark.parametrize("key", ARGUMENTS)
def test_a_bad_argument_is_named(key: str) -> None:
    found = sample()
    found["traceEvents"][2]["args"][key] = ARGUMENTS[key]
    with pytest.raises(ParseError, match=f"event 2: .*{key.removesuffix('_us')}"):
        parse_trace(json.dumps(found))


BAD = ["", "[]", "{}", "null", '{"traceEvents": 3}', '{"traceEvents": []}', "[" * 200_000, "9" * 5000, '{"traceEvents": [NaN]}']


@pytest.mark.parametrize("text", BAD, ids=[text[:20] for text in BAD])
def test_what_is_no_trace_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_trace(text)


@pytest.mark.parametrize("value", [3, "0", [], {"ph": 0}, {"ph": "M", "args": {}}])
def test_what_is_no_event_is_refused(value: object) -> None:
    with pytest.raises(ParseError, match="event 0: "):
        parse_trace(json.dumps(sample() | {"traceEvents": [value]}))


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, trace = tmp_path / "t.json", Trace()
    trace.append(TASK, "cpu0/compute", 5_000, 7_500)
    trace.save(path)
    assert Trace.load(path) == trace
    with pytest.raises(ParseError, match="No such file"):
        Trace.load(tmp_path / "none.json")
    with pytest.raises(ParseError, match="Is a directory"):
        Trace.load(tmp_path)
    monkeypatch.setattr(chrome, "MAX_FILE_BYTES", path.stat().st_size - 1)
    with pytest.raises(ParseError, match="too large"):
        Trace.load(path)
    monkeypatch.undo()
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ParseError, match="not a text"):
        Trace.load(path)
    path.write_text("{}")
    with pytest.raises(ParseError, match=r"t\.json is no trace"):
        Trace.load(path)
