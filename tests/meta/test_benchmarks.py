"""The scripts that measure what README and docs show still run, and their pages have the tables that they replace."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_table_is_closed_and_filled(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    begun = re.findall(r"<!-- begin (\w+): made by `python (\S+)` -->\n(.*?)<!-- end (\w+) -->", text, re.DOTALL)
    assert len(begun) == text.count("<!-- begin") == text.count("<!-- end")
    for name, script, table, end in begun:
        assert name == end
        assert (ROOT / script).exists()
        assert table.strip(), f"run {script}"


def test_check_table(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    printed = run(
        "check_table.py", "--models", "mlp", "--strategies", "dp=2", "dp=999", "--engine", "realm:2", "--json", str(out), "--no-pages"
    )
    good, bad = json.loads(out.read_text(encoding="utf-8"))
    assert good["equal"]
    assert good["engine"] == "realm:2"
    assert good["collectives"].keys() == {"all_reduce"}
    assert "more ways than" in bad["refused"]
    assert printed.count("\n") == 2


def test_check_table_takes_up_an_earlier_run(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    known = [{"model": "mlp", "strategy": "dp=2", "refused": "an earlier run", "learns": ""}]
    out.write_text(json.dumps(known), encoding="utf-8")
    printed = run("check_table.py", "--models", "mlp", "--strategies", "dp=2", "dp=999", "--json", str(out), "--resume", "--no-pages")
    assert printed.count("\n") == 1
    assert [row["strategy"] for row in json.loads(out.read_text(encoding="utf-8"))] == ["dp=2", "dp=999"]


def test_check_table_merges_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    check_table = importlib.import_module("check_table")
    runs = [[("llama", "tp=2", 1), ("gpt2", "tp=2", 1)], [("gpt2", "dp=2", 2), ("llama", "tp=2", 2)]]
    for number, rows in enumerate(runs):
        made = [{"model": model, "strategy": strategy, "run": run} for model, strategy, run in rows]
        (tmp_path / f"{number}.json").write_text(json.dumps(made), encoding="utf-8")
    found = [tuple(row.values()) for row in check_table.read([tmp_path / "0.json", tmp_path / "1.json"])]
    assert found == [("gpt2", "dp=2", 2), ("gpt2", "tp=2", 1), ("llama", "tp=2", 2)]


def test_train() -> None:
    found = json.loads(run("train.py", "--model", "gpt2", "--rounds", "1", "--json", "-"))
    assert {"maniple_s", "ddp_over_maniple", "eager_over_maniple", "floor_s"} <= found.keys()
    assert found["max_loss_difference"] < 1e-4  # float32, and the same work


def test_compile() -> None:
    ((found,),) = json.loads(run("compile.py", "--cases", "0", "--runs", "1", "--json", "-", "--no-pages"))
    assert found["num_tasks"] > 1
    assert found["capture_s"] > 0
    assert found["peak_bytes"] > 1 << 20


def test_pictures(tmp_path: Path) -> None:
    run("communication.py", str(tmp_path))
    for name in ("block.svg", "communication.svg"):
        assert ET.parse(tmp_path / name).getroot().tag.endswith("svg")
    # two all-reduces forward and two backward, each drawn once for either half of dp
    assert (tmp_path / "block.svg").read_text(encoding="utf-8").count("<title>all_reduce") == 8


def test_trace_picture(tmp_path: Path) -> None:
    run("trace_picture.py", str(tmp_path))
    titles = [element.text or "" for element in ET.parse(tmp_path / "trace.svg").getroot().iter() if element.tag.endswith("title")]
    assert "gpt2" in titles[0]
    for phase in ("forward", "backward", "update"):
        assert any(f", {phase} " in title for title in titles)


def test_overhead() -> None:
    found = json.loads(run("overhead.py", "--length", "50", "--repeats", "5", "--json"))
    assert all(found[name] > 0 for name in ("floor_us_per_task", "maniple_us_per_task", "traced_us_per_task"))
    assert found["maniple_us_per_task"] < found["legate_us_per_task"]
    assert found["recording_us_per_task"] > 0
    assert found["point_tasks"] == 100


def test_memory(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    run("memory.py", "--cases", "0", "--json", str(out), "--no-pages")
    (row,) = json.loads(out.read_text(encoding="utf-8"))
    assert 0 < row["measured"] <= row["bound"]
