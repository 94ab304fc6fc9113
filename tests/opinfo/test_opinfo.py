"""PyTorch's own samples of its ops, captured, equal eager PyTorch in float64, on one device and sharded; docs/coverage.md says which."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from opinfo_harness import cases, op_infos, run_case

PAGE = (Path(__file__).parents[2] / "docs" / "coverage.md").read_text(encoding="utf-8")

NEEDED = (
    "topk", "sort", "cumsum", "gather", "scatter", "scatter_reduce.amax", "index_put", "index_add", "masked_scatter", "searchsorted",
    "nn.functional.conv_transpose2d", "nn.functional.avg_pool2d", "nn.functional.adaptive_max_pool2d", "nn.functional.pad.reflect",
    "nn.functional.interpolate.bicubic", "nn.functional.embedding_bag", "nn.functional.huber_loss",
    "nn.functional.scaled_dot_product_attention", "linalg.cholesky", "linalg.svd", "fft.irfft", "einsum", "lgamma",
)  # fmt: skip
"""What models use, of each family one."""


def page_table(name: str) -> str:
    found = re.search(rf"<!-- begin {name}\b[^>]*-->\n(.*?)<!-- end {name} -->", PAGE, re.DOTALL)
    assert found
    return found[1]


def supported() -> list[str]:
    return re.findall(r"`([^`]+)`", page_table("supported"))


def refused() -> list[str]:
    """Return the ops all of whose samples are refused."""
    rows = re.findall(r"^\| `([^`]+)` \| (\d+) of (\d+) \|", page_table("refused"), re.MULTILINE)
    return [name for name, some, of in rows if some == of]


def outcome(name: str, shardings: int = 1) -> str:
    """Return what becomes of a sample of an op, one from the middle."""
    made = [(case, number, why) for case, found, number, why in cases(op_infos([name]), 3) if found == name]
    case, number, why = made[len(made) // 2]
    assert case is not None, why
    found = run_case(case, number, shardings)
    assert found.status not in ("wrong", "broke"), f"{name} sample {number}: {found.reason}"
    return found.status


@pytest.mark.parametrize("name", NEEDED)
def test_needed(name: str) -> None:
    assert outcome(name) == "equal"


@pytest.mark.parametrize("name", random.Random(1).sample(supported(), 12))  # the same ones each time
def test_page_says_what_runs(name: str) -> None:
    assert outcome(name) in ("equal", "random", "skipped")


@pytest.mark.parametrize("name", random.Random(2).sample(refused(), 3))  # the same ones each time
def test_page_says_what_is_refused(name: str) -> None:
    assert outcome(name) in ("refused", "skipped")
