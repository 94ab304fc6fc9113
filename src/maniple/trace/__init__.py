"""What ran when: events in lanes, written by engines, read by people and tools."""

from maniple.trace.summary import LaneSummary, TraceSummary, summarize
from maniple.trace.trace import Event, Kind, Trace, Work, span, task_work

__all__ = ["Event", "Kind", "LaneSummary", "Trace", "TraceSummary", "Work", "span", "summarize", "task_work"]
