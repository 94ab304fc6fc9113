"""Random graphs in random orders never take more memory than their bound."""

from __future__ import annotations

import gc
import random

from allocations import Allocations
from graphs import Delays, mesh_texts, random_graph
from hypothesis import given, settings
from hypothesis import strategies as st

from maniple.api.memory import peak
from maniple.engine.realm import RealmEngine


@settings(max_examples=60)
@given(st.integers(0, 10**9), st.sampled_from(mesh_texts(7)), st.integers(1, 25), st.sampled_from((1, 2, 4)))
def test_never_above_the_bound(allocations: Allocations, seed: int, mesh_text: str, num_ops: int, num_processors: int) -> None:
    graph, inputs = random_graph(seed, mesh_text, num_ops)
    bound = peak(graph, num_processors, "torch")
    assert bound.device_bytes <= bound.node_bytes
    rng = random.Random(seed)
    gc.collect()  # engines of earlier examples
    base = allocations.live_bytes
    engine = RealmEngine(Delays(rng, 0.0003).compile, num_processors, rng)
    for _ in range(4):
        allocations.reset()
        engine.run(graph, inputs)
        assert allocations.peak_bytes - base <= bound.node_bytes
