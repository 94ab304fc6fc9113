"""The file form of a trace: Chrome trace-event JSON, one event a line, and its reader.

The format is that of "Trace Event Format" (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU): times in
microseconds, complete events (`"ph": "X"`) in threads of processes. A lane `cpu0/compute` is thread `compute` of process `cpu0`. Times
count from the first event; `otherData` says when that was. Numbers keep their nanoseconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, get_args

from maniple.base.errors import ParseError
from maniple.base.location import Location
from maniple.ir.program import Phase
from maniple.trace.trace import Event, Kind, Trace, Work

MAX_FILE_BYTES: Final = 1 << 29
"""What a file may hold; some two million events."""

_MAX_NS: Final = 1 << 52
"""52 days: up to here microseconds as a floating-point number keep their nanoseconds."""

_MAX_INT: Final = (1 << 63) - 1


def print_trace(trace: Trace) -> str:
    """Return the file form of `trace`."""
    origin = min((min(event.start_ns, event.ready_ns) for event in trace), default=0)
    places = list(dict.fromkeys(lane.partition("/")[0] for lane in trace.lanes))
    ids = {lane: (places.index(lane.partition("/")[0]) + 1, number + 1) for number, lane in enumerate(trace.lanes)}
    lines = []
    for lane, (process, thread) in ids.items():
        place, _, what = lane.partition("/")
        for kind, name in (("process_name", place), ("thread_name", what)):
            lines.append({"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}})
    lines += [_event(event, *ids[event.lane], origin) for event in trace]
    about = {"made_by": "maniple", "origin_ns": origin, "num_steps": trace.num_steps}
    text = ",\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
    return f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[\n{text}\n]}}\n'


def _event(event: Event, process: int, thread: int, origin: int) -> dict[str, Any]:
    work = event.work
    args: dict[str, Any] = {"step": event.step}
    if event.device >= 0:
        args["device"] = event.device
    if work.is_task:
        args |= {"op": work.op, "phase": work.phase, "bytes": work.num_bytes, "flops": work.flops}
    if event.start_ns != event.ready_ns:
        args["waited_us"] = (event.start_ns - event.ready_ns) / 1000
    if work.location is not None:
        args |= {"location": work.location.text()}
    return {
        "name": work.name, "cat": work.kind, "ph": "X", "ts": (event.start_ns - origin) / 1000, "dur": event.duration_ns / 1000,
        "pid": process, "tid": thread, "args": args,
    }  # fmt: skip


def load_trace(path: Path) -> Trace:
    """Return the trace in a file.

    Raises:
        ParseError: if the file cannot be read, is larger than `MAX_FILE_BYTES`, or holds something else.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ParseError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise ParseError(f"{path} is too large for a trace: more than {MAX_FILE_BYTES >> 20} MiB")
    try:
        return parse_trace(data.decode())
    except UnicodeDecodeError as error:
        raise ParseError(f"{path} is no trace: not a text") from error
    except ParseError as error:
        raise ParseError(f"{path} is no trace: {error.what}", hint="a file that --trace or Trace.save wrote") from error


def parse_trace(text: str) -> Trace:
    """Return the trace that `text` spells. Nothing in it is run or looked up.

    Raises:
        ParseError: naming the event that does not parse.
    """
    try:
        found = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:  # also numbers of too many digits, and lists nested too deep
        raise ParseError(f"it is not JSON: {error}") from error
    if not isinstance(found, dict) or not isinstance(found.get("traceEvents"), list):
        raise ParseError("it has no list of traceEvents")
    about = found.get("otherData", {})
    if not isinstance(about, dict) or about.get("made_by") != "maniple":
        raise ParseError("Maniple did not write it")
    trace, names = Trace(), _Names()
    origin = _int(about, "origin_ns")
    for number, item in enumerate(found["traceEvents"]):
        try:
            _read(item, names, trace, origin)
        except ParseError as error:
            raise ParseError(f"event {number}: {error.what}") from error
    trace.num_steps = _int(about, "num_steps")
    return trace


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


class _Names:
    """Names of processes and threads, by their ids."""

    def __init__(self) -> None:
        self.processes: dict[int, str] = {}
        self.threads: dict[tuple[int, int], str] = {}

    def add(self, item: Mapping[str, Any]) -> None:
        name = _text(_dict(item, "args"), "name")
        process, thread = _int(item, "pid"), _int(item, "tid")
        if item.get("name") == "process_name":
            self.processes[process] = name
        elif item.get("name") == "thread_name":
            self.threads[process, thread] = name

    def lane(self, item: Mapping[str, Any]) -> str:
        process, thread = _int(item, "pid"), _int(item, "tid")
        if process not in self.processes or (process, thread) not in self.threads:
            raise ParseError(f"no name is given to thread {thread} of process {process}")
        return f"{self.processes[process]}/{self.threads[process, thread]}"


def _read(item: Any, names: _Names, trace: Trace, origin: int) -> None:
    if not isinstance(item, dict):
        raise ParseError("it is not an object")
    if item.get("ph") == "M":
        names.add(item)
        if item.get("name") == "thread_name":
            trace.add_lane(names.lane(item))
        return
    if item.get("ph") != "X":
        raise ParseError(f"ph is {item.get('ph')!r}; expected X or M")
    args = _dict(item, "args")
    phase = args.get("phase")
    place = _text(args, "location", "")
    location = Location.parse(place)
    if item.get("cat") not in get_args(Kind):
        raise ParseError(f"cat is {item.get('cat')!r}; expected one of {', '.join(get_args(Kind))}")
    if phase is not None and phase not in get_args(Phase):
        raise ParseError(f"phase is {phase!r}; expected one of {', '.join(get_args(Phase))}")
    if place and location is None:
        raise ParseError(f"cannot read location {place!r}")
    work = Work(_text(item, "name"), item["cat"], _text(args, "op", ""), phase, _int(args, "bytes", 0), _int(args, "flops", 0), location)
    start, waited = origin + _ns(item, "ts"), _ns(args, "waited_us", 0)
    trace.append(
        work, names.lane(item), start, start + _ns(item, "dur"),
        device=_int(args, "device", -1), step=_int(args, "step"), ready_ns=start - waited,
    )  # fmt: skip


def _dict(item: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = item.get(key)
    if not isinstance(value, dict):
        raise ParseError(f"{key} is not an object")
    return value


def _text(item: Mapping[str, Any], key: str, default: str | None = None) -> str:
    value = item.get(key, default)
    if not isinstance(value, str):
        raise ParseError(f"{key} is not a text")
    return value


def _int(item: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = item.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value <= _MAX_INT - 2 * _MAX_NS:
        raise ParseError(f"{key} is not a number that can be")
    return value


def _ns(item: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = item.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _MAX_NS / 1000:
        raise ParseError(f"{key} is not a time")
    return round(value * 1000)
