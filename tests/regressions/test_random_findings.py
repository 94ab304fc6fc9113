"""What random programs found, each in its smallest form."""

from __future__ import annotations

import pytest
import torch

from maniple.base.errors import VerifyError
from maniple.engine.reference import ReferenceEngine
from maniple.ir import parse_program
from maniple.kernels.torch import compile_program
from maniple.lower import lower
from maniple.mesh import Mesh, Sharding, Strategy
from maniple.shard.cost import CostModel
from maniple.shard.layouts import Layouts
from maniple.shard.propagate import propagate
from maniple.shard.shard import shard
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


def test_gradient_that_another_axis_cuts_into_other_blocks() -> None:
    """zero=2 splits gradients as their parameters are split, here into two blocks, of which half a dim of two has none."""
    program = parse_program("""
program {
  in %w: f64[2,3] parameter "w"
  in %x: f64[2,3] batch "x"
  in %m: f64[2,3] optimizer "optimizer.m.w"
  %a: f64[2,3] = multiply(%w, %x) forward
  %g: f64[2,3] = tanh(%a) backward
  %n: f64[2,3] = add(%m, %g) update
  %v: f64[2,3] = add(%w, %n) update
  out %v "w"
  out %n "optimizer.m.w"
  gradient %g "w"
}
""")
    text = "tp=2 dp=2 zero=2 place:w={dp/2.tp/2,_} pin:a={tp,_} pin:g={tp,_} pin:x={_,_}"
    sharded = shard(program, Strategy.parse(text))
    verify_sharded(sharded.program, sharded.mesh)
    tensors = {name: torch.rand(2, 3, dtype=torch.float64) for name in ("w", "x", "optimizer.m.w")}
    got = ReferenceEngine(compile_program).run(lower(sharded.program, sharded.mesh, ()), {name: t.clone() for name, t in tensors.items()})
    m = tensors["optimizer.m.w"] + (tensors["w"] * tensors["x"]).tanh()
    torch.testing.assert_close(got["w"], tensors["w"] + m)


def test_layout_of_other_blocks_on_one_dim_is_found() -> None:
    program = parse_program("""
program {
  in %x: f64[4]{dp.tp/2} batch "x"
  out %x "x"
}
""")
    with pytest.raises(VerifyError, match="not cut into the same whole units"):
        verify_sharded(program, Mesh.parse("dp=2 tp=2"))
