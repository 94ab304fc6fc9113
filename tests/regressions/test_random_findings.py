"""What random programs found, each in its smallest form."""

from __future__ import annotations

import pytest
import torch

from maniple.engine.reference import ReferenceEngine
from maniple.ir import parse_program
from maniple.kernels.torch import compile_program
from maniple.lower import lower
from maniple.mesh import Mesh, Sharding
from maniple.shard.cost import CostModel
from maniple.shard.layouts import Layouts
from maniple.shard.propagate import propagate
from maniple.verify.sharded import verify_sharded


@pytest.mark.parametrize(
    "layout", ["{dp/2.tp/2}", "{tp/2.dp/2}", "{dp.tp}", "{dp*2.tp*2}", "{dp/4.tp/4}", "{dp/2*5.tp/2*5}", "{dp*10.tp*10}"]
)
@pytest.mark.parametrize("shape", [(4, 5, 2), (8, 5), (2, 20), (10, 4)])
def test_two_axes_cut_blocks_of_a_dim_that_is_reshaped(layout: str, shape: tuple[int, ...]) -> None:
    """Each of two blocks of 20 elements is four times 5, but each of two blocks of the 4 rows that it becomes is two rows."""
    sizes = ",".join(map(str, shape))
    program = parse_program(f"""
program {{
  in %x: f64[40] batch "x"
  %y: f64[{sizes}] = reshape(%x) forward
  %z: f64[{sizes}] = negate(%y) forward
  out %z "z"
}}
""")
    mesh, x = Mesh.parse("dp=2 tp=2"), torch.arange(40, dtype=torch.float64)
    sharded = propagate(program, mesh, Layouts({"x": Sharding.parse(layout)}, ("dp", "tp")), CostModel())
    verify_sharded(sharded, mesh)
    got = ReferenceEngine(compile_program).run(lower(sharded, mesh, ()), {"x": x})
    assert torch.equal(got["z"], -x.reshape(shape))
