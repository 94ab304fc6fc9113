"""Engines run task graphs. This package's interface needs no framework; engines import theirs when they are made."""

from maniple.engine.protocol import Body, CompileBody, Engine

__all__ = ["Body", "CompileBody", "Engine"]
