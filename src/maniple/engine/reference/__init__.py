"""The reference engine: all devices in one process, one task after another. It defines what a task graph means."""

from maniple.engine.reference.engine import ReferenceEngine

__all__ = ["ReferenceEngine"]
