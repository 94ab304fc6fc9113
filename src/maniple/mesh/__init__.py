"""Meshes of devices and how tensors lie on them."""

from maniple.mesh.mesh import Mesh
from maniple.mesh.sharding import AxisPart, Pending, Sharding, shard_bounds

__all__ = ["AxisPart", "Mesh", "Pending", "Sharding", "shard_bounds"]
