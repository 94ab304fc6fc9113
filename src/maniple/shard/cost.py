"""The cost model that layouts are chosen by: time, from FLOPs, bytes and latency."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CostModel:
    """A device and its links; the defaults are of a current accelerator node, only their ratios matter.

    Attributes:
        flops_per_s: rate at which a device computes.
        bytes_per_s: bandwidth of one device's link.
        latency_s: time of a collective that moves nothing.
    """

    flops_per_s: float = 4e14
    bytes_per_s: float = 2e11
    latency_s: float = 1e-5

    def compute_s(self, flops: float) -> float:
        """Return the time of `flops` operations."""
        return flops / self.flops_per_s

    def collective_s(self, kind: str, num_bytes: float, ways: int) -> float:
        """Return the time of a collective over `ways` devices on a value of which a device holds `num_bytes`.

        `num_bytes` counts the operand of all_reduce, reduce_scatter and all_to_all, and the result of all_gather. Ring
        algorithms: an all_reduce moves 2 (k-1)/k of that, all_gather and reduce_scatter (k-1)/k, all_to_all (k-1)/k.
        Local layout changes are free.
        """
        if kind in ("shard_slice", "to_pending"):
            return 0.0
        share = (ways - 1) / ways * (2 if kind == "all_reduce" else 1)
        return self.latency_s + share * num_bytes / self.bytes_per_s
