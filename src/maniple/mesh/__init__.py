"""Meshes of devices, how tensors lie on them, and strategies that say so."""

from maniple.mesh.mesh import Mesh
from maniple.mesh.sharding import AxisPart, Pending, Sharding, shard_bounds
from maniple.mesh.strategy import Pin, Placement, Strategy

__all__ = ["AxisPart", "Mesh", "Pending", "Pin", "Placement", "Sharding", "Strategy", "shard_bounds"]
