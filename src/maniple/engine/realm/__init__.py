"""The Realm engine: a task graph as Realm tasks and events, prepared ahead and issued in one call per step."""

from maniple.engine.realm.engine import RealmEngine

__all__ = ["RealmEngine"]
