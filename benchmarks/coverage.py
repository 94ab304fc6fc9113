"""Runs PyTorch's own samples of its ops (OpInfo) through the capture table and writes the tables of docs/coverage.md.

    python benchmarks/coverage.py                             # six samples of every op, about 20 minutes on one core; rewrites the page
    python benchmarks/coverage.py --ops topk sort --samples 3 --no-pages
    python benchmarks/coverage.py --samples 1000 --json all.json --no-pages       # all samples there are

Exit status 1 if a program gave other numbers than eager PyTorch.
"""

from __future__ import annotations

import argparse
import collections
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson
from pages import ROOT, markdown, replace_table

sys.path.insert(0, str(ROOT / "tests" / "opinfo"))

PAGE: Final = ROOT / "docs" / "coverage.md"

GROUPS: Final = ("nn.functional.", "linalg.", "fft.", "special.", "masked.", "signal.", "")
"""How names of a group begin; the last one takes the rest."""

STATUSES: Final = {
    "equal": "equal to eager PyTorch, on one device and sharded at random",
    "random": "random, or memory that nothing wrote: shape and dtype compared",
    "refused": "refused while capturing, with the reason",
    "wrong": "other numbers",
    "broke": "another error",
    "skipped": "not run: eager PyTorch itself fails, or the op has no samples of a dtype that a program holds",
}

Row = dict[str, Any]


def measure(names: Sequence[str], samples: int, shardings: int) -> list[Row]:
    """Return what became of each sample of the ops called `names`, of all ops if there are none."""
    import torch
    from opinfo_harness import Outcome, cases, op_infos, run_case

    torch.set_num_threads(1)
    rows = []
    for case, name, number, why in cases(op_infos(names), samples):
        outcome = run_case(case, number, shardings) if case else Outcome(name, number, "skipped", why)
        rows.append(vars(outcome))
        if outcome.status in ("wrong", "broke"):
            print(f"{name} {number}: {outcome.status}: {outcome.reason}", flush=True)
    return rows


def by_op(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each op, in the order of names."""
    found: dict[str, list[Row]] = collections.defaultdict(list)
    for row in rows:
        found[row["op"]].append(row)
    return dict(sorted(found.items()))


def reason(text: str) -> str:
    """Return a reason on one line, without what differs from sample to sample."""
    line = re.sub(r"\s+", " ", text.split("\n", maxsplit=1)[0]).replace("|", "/")
    line = re.sub(r"'batch[\d.]*' is a Tensor of", "an operand of", line)
    return line if len(line) <= 110 else line[:107] + "..."  # the width of a column


def summary(rows: Sequence[Row], ops: Mapping[str, Sequence[Row]]) -> str:
    """Return how many samples and ops came out how."""
    samples = collections.Counter(row["status"] for row in rows)
    whole = collections.Counter(status for found in ops.values() for status in {row["status"] for row in found})
    lines = [(text, str(samples[status]), str(whole[status])) for status, text in STATUSES.items()]
    shardings = sum(row["shardings"] for row in rows)
    total = ("all", f"{len(rows)} (and {shardings} shardings)", str(len(ops)))
    return markdown(("what became of it", "samples", "ops with such a sample"), [*lines, total], right="samples,ops with such a sample")


def is_supported(rows: Sequence[Row]) -> bool:
    """Return whether all samples of an op ran."""
    return any(row["status"] in ("equal", "random") for row in rows) and not any(
        row["status"] in ("refused", "broke", "wrong") for row in rows
    )


def supported(ops: Mapping[str, Sequence[Row]]) -> str:
    """Return the names of the ops all of whose samples ran, by group."""
    names = [name for name, rows in ops.items() if is_supported(rows)]
    grouped = collections.defaultdict(list)
    for name in names:
        grouped[next(prefix for prefix in GROUPS if name.startswith(prefix))].append(name)
    return markdown(("group", "ops"), [(prefix.rstrip(".") or "torch", " ".join(f"`{n}`" for n in grouped[prefix])) for prefix in GROUPS])


def refused(ops: Mapping[str, Sequence[Row]]) -> str:
    """Return the ops of which some samples are refused, and the commonest reason."""
    lines = []
    for name, rows in ops.items():
        texts = [reason(row["reason"]) for row in rows if row["status"] == "refused"]
        if texts:
            (text, _), *_ = collections.Counter(texts).most_common(1)
            lines.append((f"`{name}`", f"{len(texts)} of {len(rows)}", text))
    return markdown(("op", "samples refused", "reason"), lines)


def write(rows: Sequence[Row]) -> None:
    """Replace the page's tables."""
    ops = by_op(rows)
    replace_table(PAGE, "summary", summary(rows, ops))
    replace_table(PAGE, "supported", supported(ops))
    replace_table(PAGE, "refused", refused(ops))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", nargs="*", default=[], help="names of ops, all if none")
    parser.add_argument("--samples", type=int, default=6, help="most samples of each op")
    parser.add_argument("--shardings", type=int, default=1, help="random shardings of each sample")
    parser.add_argument("--json", type=Path, help="write the outcomes there")
    parser.add_argument("--from-json", type=Path, help="write the page from outcomes measured before")
    parser.add_argument("--no-pages", action="store_true", help="leave the page as it is")
    given = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    rows = orjson.loads(given.from_json.read_bytes()) if given.from_json else measure(given.ops, given.samples, given.shardings)
    if given.json:
        given.json.write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2))
    if not given.no_pages:
        write(rows)
    print(dict(collections.Counter(row["status"] for row in rows)))
    return int(any(row["status"] in ("wrong", "broke") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
