"""Training steps written by hand: forward ops with their gradients, for tests that need no framework."""

from __future__ import annotations

from collections.abc import Callable

from maniple.base.location import Location
from maniple.base.types import TensorType
from maniple.ir.program import Input, InputKind, Output, Program, Value
from maniple.ops import CATALOG, Builder

Pull = Callable[[Value], list[tuple[Value, Value]]]


class Tape:
    """Builds forward, remembers how to build backward, then adds an SGD update."""

    def __init__(self, dtype: str = "f32") -> None:
        self.dtype, self.b = dtype, Builder(CATALOG)
        self.inputs: list[Input] = []
        self.steps: list[tuple[Value, Pull]] = []

    def input(self, name: str, *shape: int, kind: InputKind = "parameter", dtype: str = "") -> Value:
        value = Value(f"in.{name}", TensorType(dtype or self.dtype, shape))
        self.inputs.append(Input(value, kind, name))
        return value

    def at(self, line: int, scope: str) -> None:
        self.b.location = Location("model.py", line, scope)

    def note(self, y: Value, pull: Pull) -> Value:
        self.steps.append((y, pull))
        return y

    def linear(self, x: Value, w: Value, bias: Value | None = None) -> Value:
        """x [..., i] times w [o, i], as frameworks do it: in two dims, the weight transposed."""
        b, flat, out = self.b, (x.type.num_elements // x.type.shape[-1], x.type.shape[-1]), w.type.shape[0]
        x2 = b("reshape", x, like=x.type.with_shape(flat))
        y2 = b("dot_general", x2, b("transpose", w, perm=(1, 0)), lhs_contract=(1,), rhs_contract=(0,), lhs_batch=(), rhs_batch=())
        if bias is not None:
            y2 = b("add", y2, b.broadcast(bias, y2.type.shape, (1,)))
        y = b("reshape", y2, like=x.type.with_shape((*x.type.shape[:-1], out)))

        def pull(g: Value) -> list[tuple[Value, Value]]:
            g2 = b("reshape", g, like=y2.type)
            dx = b("dot_general", g2, w, lhs_contract=(1,), rhs_contract=(0,), lhs_batch=(), rhs_batch=())
            dw = b("dot_general", b("transpose", g2, perm=(1, 0)), x2, lhs_contract=(1,), rhs_contract=(0,), lhs_batch=(), rhs_batch=())
            found = [(x, b("reshape", dx, like=x.type)), (w, dw)]
            return found + ([(bias, b("reduce_sum", g2, dims=(0,)))] if bias is not None else [])

        return self.note(y, pull)

    def add(self, x: Value, y: Value) -> Value:
        return self.note(self.b("add", x, y), lambda g: [(x, g), (y, g)])

    def multiply(self, x: Value, y: Value) -> Value:
        b = self.b
        return self.note(b("multiply", x, y), lambda g: [(x, b("multiply", g, y)), (y, b("multiply", g, x))])

    def spread(self, x: Value, shape: tuple[int, ...], dims: tuple[int, ...]) -> Value:
        rest = tuple(d for d in range(len(shape)) if d not in dims)
        return self.note(self.b.broadcast(x, shape, dims), lambda g: [(x, self.b("reduce_sum", g, dims=rest))])

    def reshape(self, x: Value, *shape: int) -> Value:
        y = self.b("reshape", x, like=x.type.with_shape(shape))
        return self.note(y, lambda g: [(x, self.b("reshape", g, like=x.type))])

    def transpose(self, x: Value, *perm: int) -> Value:
        back = tuple(perm.index(d) for d in range(len(perm)))
        return self.note(self.b("transpose", x, perm=perm), lambda g: [(x, self.b("transpose", g, perm=back))])

    def unary(self, name: str, x: Value, **attrs: str) -> Value:
        return self.note(self.b(name, x, **attrs), lambda g: [(x, self.b(f"{name}_grad", g, x, **attrs))])

    def layer_norm(self, x: Value, w: Value, bias: Value) -> Value:
        b = self.b
        y, mean, rstd = b.emit("layer_norm", (x, w, bias), eps=1e-5)
        return self.note(y, lambda g: list(zip((x, w, bias), b.emit("layer_norm_grad", (g, x, mean, rstd, w)), strict=True)))

    def split3(self, x: Value) -> list[Value]:
        """Three equal parts of the last dim; one concatenation in backward."""
        b, dim, n = self.b, x.type.rank - 1, x.type.shape[-1] // 3
        parts = [b("slice", x, dim=dim, start=i * n, limit=(i + 1) * n, stride=1) for i in range(3)]
        grads: dict[int, Value] = {}

        def pull_of(i: int) -> Pull:
            def pull(g: Value) -> list[tuple[Value, Value]]:
                grads[i] = g
                return [(x, b("concatenate", *(grads[j] for j in range(3)), dim=dim))] if len(grads) == 3 else []

            return pull

        return [self.note(part, pull_of(i)) for i, part in enumerate(parts)]

    def attention(self, q: Value, k: Value, v: Value, *, causal: bool) -> Value:
        b = self.b
        out, lse = b.emit("attention", (q, k, v), causal=causal, scale=0.125)

        def pull(g: Value) -> list[tuple[Value, Value]]:
            return list(zip((q, k, v), b.emit("attention_grad", (g, q, k, v, out, lse), causal=causal, scale=0.125), strict=True))

        return self.note(out, pull)

    def embedding(self, table: Value, ids: Value) -> Value:
        y = self.b("embedding", table, ids)
        return self.note(y, lambda g: [(table, self.b("embedding_grad", g, ids, like=table.type, padding_idx=-1))])

    def cross_entropy(self, logits: Value, labels: Value) -> Value:
        """Mean over rows of minus the log-probability of the label; logits [n, v], labels [n]."""
        b, count = self.b, logits.type.shape[0]
        y = b("log_softmax", logits, dim=1)
        picked = b("pick", y, labels, ignore_index=-100)
        loss = b("divide", b("negate", b("reduce_sum", picked, dims=(0,))), b.constant(count, self.dtype))

        def pull(g: Value) -> list[tuple[Value, Value]]:
            each = b("negate", b("divide", g, b.constant(count, self.dtype)))
            dy = b("pick_grad", b.broadcast(each, (count,), ()), labels, like=y.type, ignore_index=-100)
            return [(logits, b("log_softmax_grad", dy, y, dim=1))]

        return self.note(loss, pull)

    def finish(self, loss: Value) -> Program:
        """Return the step: backward from `loss`, plain SGD, the loss as result."""
        self.b.phase = "backward"
        grads = {loss: self.b.constant(1.0, self.dtype)}
        for y, pull in reversed(self.steps):
            if y in grads:
                for x, g in pull(grads[y]):
                    grads[x] = self.b("add", grads[x], g) if x in grads else g
        self.b.phase = "update"
        outputs, gradients = [Output(loss, "result")], []
        for item in self.inputs:
            if item.kind == "parameter":
                grad = grads[item.value]
                gradients.append((item.name, grad))
                step = self.b("multiply", grad, self.b.constant(0.1, self.dtype))
                outputs.append(Output(self.b("subtract", item.value, step), item.name))
        return Program(tuple(self.inputs), tuple(self.b.ops), tuple(outputs), tuple(gradients))


def mlp(batch: int = 8, width: int = 64, hidden: int = 256, classes: int = 16, layers: int = 1, dtype: str = "f32") -> Program:
    """Linear layers with GELU between them, two for each of `layers`, and a cross entropy."""
    t = Tape(dtype)
    x = t.input("batch.x", batch, width, kind="batch")
    labels = t.input("batch.y", batch, kind="batch", dtype="i64")
    for i in range(layers):
        t.at(10 + i, f"layers.{i}")
        x = t.linear(x, t.input(f"{i}.up.weight", hidden, width), t.input(f"{i}.up.bias", hidden))
        x = t.unary("gelu", x, approximate="none")
        out = classes if i == layers - 1 else width
        x = t.linear(x, t.input(f"{i}.down.weight", out, hidden), t.input(f"{i}.down.bias", out))
    return t.finish(t.cross_entropy(x, labels))


def transformer(
    *, batch: int = 8, seq: int = 32, heads: int = 4, head: int = 16, vocab: int = 128, layers: int = 2, tied: bool = True,
    fused: bool = True, causal: bool = True, dtype: str = "f32",
) -> Program:  # fmt: skip
    """GPT-2 if `fused` and `tied`: pre-norm blocks, learned positions."""
    t, h = Tape(dtype), heads * head
    ids = t.input("batch.x", batch, seq, kind="batch", dtype="i64")
    labels = t.input("batch.y", batch, seq, kind="batch", dtype="i64")
    table, positions = t.input("wte.weight", vocab, h), t.input("wpe.weight", 2 * seq, h)
    t.at(1, "")
    places = t.embedding(positions, t.b("iota", like=TensorType("i64", (seq,)), dim=0))
    x = t.add(t.embedding(table, ids), t.spread(places, (batch, seq, h), (1, 2)))
    for i in range(layers):
        x = _block(t, f"h.{i}", x, heads, fused=fused, causal=causal)
    t.at(30, "")
    x = t.layer_norm(x, t.input("ln_f.weight", h), t.input("ln_f.bias", h))
    logits = t.linear(x, table if tied else t.input("head.weight", vocab, h))
    flat = t.b("reshape", labels, like=labels.type.with_shape((batch * seq,)))
    return t.finish(t.cross_entropy(t.reshape(logits, batch * seq, vocab), flat))


def _block(t: Tape, name: str, x: Value, heads: int, *, fused: bool, causal: bool) -> Value:
    batch, seq, h = x.type.shape
    t.at(10, f"{name}.attn")
    y = t.layer_norm(x, t.input(f"{name}.ln_1.weight", h), t.input(f"{name}.ln_1.bias", h))
    if fused:
        parts = t.split3(t.linear(y, t.input(f"{name}.attn.c_attn.weight", 3 * h, h), t.input(f"{name}.attn.c_attn.bias", 3 * h)))
    else:
        parts = [t.linear(y, t.input(f"{name}.attn.{n}.weight", h, h), t.input(f"{name}.attn.{n}.bias", h)) for n in "qkv"]
    q, k, v = (t.transpose(t.reshape(part, batch, seq, heads, h // heads), 0, 2, 1, 3) for part in parts)
    y = t.reshape(t.transpose(t.attention(q, k, v, causal=causal), 0, 2, 1, 3), batch, seq, h)
    y = t.linear(y, t.input(f"{name}.attn.c_proj.weight", h, h), t.input(f"{name}.attn.c_proj.bias", h))
    x = t.add(x, y)
    t.at(20, f"{name}.mlp")
    y = t.layer_norm(x, t.input(f"{name}.ln_2.weight", h), t.input(f"{name}.ln_2.bias", h))
    y = t.linear(y, t.input(f"{name}.mlp.c_fc.weight", 4 * h, h), t.input(f"{name}.mlp.c_fc.bias", 4 * h))
    y = t.unary("gelu", y, approximate="tanh")
    y = t.linear(y, t.input(f"{name}.mlp.c_proj.weight", h, 4 * h), t.input(f"{name}.mlp.c_proj.bias", h))
    return t.add(x, y)
