"""Traces as pictures."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from maniple.base.errors import ParseError
from maniple.trace import Trace, Work, picture
from maniple.trace.picture import BAND, COLOURS, LEFT, PAPER, RUNTIME, TASK_PX, WAIT, WIDTH, draw
from maniple.trace.trace import DISPATCH

SVG = "{http://www.w3.org/2000/svg}"
EVIL = 'a<script>&"\x00\x1b]0;'


def sample() -> Trace:
    trace = Trace()
    ms = 1_000_000
    for step in range(2):
        for work, lane, start, end in (
            (Work("step", "step"), "main/step", 0, 100),
            (Work("wait", "wait"), "main/runtime", 0, 100),
            (Work(EVIL, "compute", "add", "forward"), "cpu0/compute", 25, 50),
            (Work("b", "collective", "all_reduce", "backward"), "cpu10/compute", 50, 75),
            (Work("c", "compute", "add", "update"), "cpu2/compute", 75, 100),
            (DISPATCH, "cpu2/runtime", 50, 75),
        ):
            trace.append(work, lane, start * ms, end * ms, step=step)
    return trace


def parsed(trace: Trace) -> ET.Element:
    return ET.fromstring(draw(trace))


def test_tasks_are_where_and_as_long_as_they_were() -> None:
    found = {}
    for rect in parsed(sample()).iter(f"{SVG}rect"):
        title = rect.find(f"{SVG}title")
        if title is not None and title.text:
            found[title.text.split()[0]] = rect
    assert len(found) == 5
    expected = {"b": (50, COLOURS["backward"]), "c": (75, COLOURS["update"]), "dispatch": (50, RUNTIME)}
    for name, (start, colour) in expected.items():
        assert float(found[name].get("x", "")) == pytest.approx(LEFT + WIDTH * start / 100, abs=0.01)
        assert float(found[name].get("width", "")) == pytest.approx(WIDTH / 4, abs=0.01)
        assert found[name].get("fill") == colour
    assert found["wait"].get("fill") == WAIT
    assert float(found["dispatch"].get("height", "")) < float(found["c"].get("height", "")) == TASK_PX
    assert float(found["c"].get("y", "")) < float(found["dispatch"].get("y", "")) < float(found["b"].get("y", ""))


def test_words() -> None:
    texts = [text.text for text in parsed(sample()).iter(f"{SVG}text")]
    assert texts[:5] == ["step 1: 100.00 ms", "forward", "backward", "update", "runtime"]
    assert texts[5:9] == ["main", "cpu0", "cpu2", "cpu10"]
    assert texts[9:] == ["0 ms", "20", "40", "60", "80", "100"]


def test_names_are_escaped() -> None:
    text = draw(sample(), title=EVIL)
    assert "<script" not in text
    root = ET.fromstring(text)
    assert {element.tag for element in root.iter()} <= {f"{SVG}{name}" for name in ("svg", "title", "rect", "text", "path")}


def test_it_reads_on_dark_pages() -> None:
    """All words are on the picture's own paper, and differ from it as readable text must (WCAG, 4.5 to 1)."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    root = parsed(sample())
    paper = root.find(f"{SVG}rect")
    assert paper is not None
    assert (paper.get("width"), paper.get("height"), paper.get("fill")) == ("100%", "100%", PAPER)
    for text in root.iter(f"{SVG}text"):
        assert (luminance(PAPER) + 0.05) / (luminance(text.get("fill", "")) + 0.05) >= 4.5
    assert BAND != PAPER


@pytest.mark.parametrize("length_ns", [1, 17, 999, 1_000_000, 123_456_789, 10**13])
def test_ticks_are_few_and_inside(length_ns: int) -> None:
    trace = Trace()
    trace.append(DISPATCH, "cpu0/runtime", 5, 5 + length_ns)
    ticks = list(parsed(trace).iter(f"{SVG}path"))
    assert 2 <= len(ticks) <= 10
    assert all(LEFT <= float(tick.get("d", "")[1:].split()[0]) <= LEFT + WIDTH + 0.1 for tick in ticks)


def test_what_cannot_be_drawn_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ParseError, match="no step 0"):
        draw(Trace())
    with pytest.raises(ParseError, match="steps: 0, 1"):
        draw(sample(), step=2)
    monkeypatch.setattr(picture, "MAX_EVENTS", 5)
    with pytest.raises(ParseError, match="too many"):
        draw(sample())
