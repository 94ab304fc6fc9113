"""The commands `train`, `check`, `explain`, `trace` and `models`.

Exit status: 0 well, 1 a check that failed, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Final, TypeVar

import orjson
import typer
from rich.console import Console, RenderableType

from maniple.base.errors import ManipleError
from maniple.cli import render
from maniple.cli.progress import progress_shown
from maniple.commands import CheckConfig, ExplainConfig, Listener, Stage, TraceConfig, TrainConfig, WorkloadConfig, ignore
from maniple.mesh import Strategy

app: Final = typer.Typer(
    name="maniple",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Take a training step as it is, shard it by a strategy, run it as tasks, get the numbers of one device.",
)

Report = TypeVar("Report")

_ENGINE_DEFAULT = "realm where legate is installed, else reference"
_STRATEGY = 'words such as "dp=2 tp=2 zero=3", or a path that ends in .toml'
Model = Annotated[str, typer.Argument(metavar="MODEL", help="gpt2, gpt2:small, ... (see maniple models), hf:PATH, or FILE.py:FUNCTION")]
StrategyText = Annotated[str, typer.Option("--strategy", "-s", metavar="TEXT", help=_STRATEGY)]
Engine = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="what runs the tasks: realm, realm:N for N processors, reference", show_default=_ENGINE_DEFAULT),
]
Rows = Annotated[int | None, typer.Option("--batch", metavar="N", help="rows of the global batch")]
Seq = Annotated[int | None, typer.Option("--seq", metavar="N", help="tokens per row")]
Dropout = Annotated[float, typer.Option(metavar="RATE", help="dropout rate")]
Seed = Annotated[int, typer.Option(metavar="N", help="seed of weights, data and dropout")]
_TRACE = "record the last 3 steps in this file (the first 2, which compile, only if there are no others)"
TraceFile = Annotated[str, typer.Option("--trace", metavar="FILE", help=_TRACE)]
_FIND_NAN = "before each step compute it op by op, and name the first op that makes a number that is not finite (exit 2); slow"
FindNan = Annotated[bool, typer.Option("--find-nan", help=_FIND_NAN)]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object instead of tables")]
Debug = Annotated[bool, typer.Option("--debug", help="show the traceback of an error")]


@app.command()
def train(
    model: Model,
    *,
    strategy: StrategyText,
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="training steps")] = 50,
    engine: Engine = None,
    dtype: Annotated[str, typer.Option(help="float32, float64 or bfloat16")] = "float32",
    batch: Rows = None,
    seq: Seq = None,
    dropout: Dropout = 0.0,
    seed: Seed = 0,
    compare: Annotated[bool, typer.Option("--compare", help="train on one device as well, the framework's own way")] = False,
    trace: TraceFile = "",
    find_nan: FindNan = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train a model under a strategy: on real text, or on made-up images and rows."""
    with _errors_shown(debug=debug):
        from maniple import api

        workload = WorkloadConfig(model=model, batch=batch, seq=seq, dtype=dtype, dropout=dropout, seed=seed)
        parsed = Strategy.load(strategy)
        config = TrainConfig(
            workload=workload, strategy=parsed, engine=engine, steps=steps, compare=compare, trace=trace, find_nan=find_nan
        )
        _report(lambda listener: api.train(config, listener), render.train_view, as_json=as_json)


@app.command()
def check(
    model: Model,
    *,
    strategy: StrategyText,
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="steps to compare")] = 3,
    engine: Engine = None,
    dtype: Annotated[str, typer.Option(help="float64, float32 or bfloat16")] = "float64",
    batch: Rows = None,
    seq: Seq = None,
    dropout: Dropout = 0.0,
    seed: Seed = 0,
    trace: TraceFile = "",
    find_nan: FindNan = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare every tensor with one device; exit 1 if one differs."""
    with _errors_shown(debug=debug):
        from maniple import api

        workload = WorkloadConfig(model=model, batch=batch, seq=seq, dtype=dtype, dropout=dropout, seed=seed)
        config = CheckConfig(
            workload=workload, strategy=Strategy.load(strategy), engine=engine, steps=steps, trace=trace, find_nan=find_nan
        )
        report = _report(lambda listener: api.check(config, listener), render.check_view, as_json=as_json)
    if not report.equal:
        raise typer.Exit(1)


@app.command()
def explain(
    model: Model,
    *,
    strategy: StrategyText = "",
    stage: Annotated[Stage | None, typer.Option(help="print this stage instead")] = None,
    engine: Engine = None,
    dtype: Annotated[str, typer.Option(help="float32, float64 or bfloat16")] = "float32",
    batch: Rows = None,
    seq: Seq = None,
    dropout: Dropout = 0.0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print what is communicated and why; or the program, the sharded program, the tasks of an engine, or their memory."""
    with _errors_shown(debug=debug):
        from maniple import api

        workload = WorkloadConfig(model=model, batch=batch, seq=seq, dtype=dtype, dropout=dropout)
        config = ExplainConfig(workload=workload, strategy=Strategy.load(strategy), stage=stage, engine=engine)
        _report(lambda listener: api.explain(config, listener), render.explain_view, as_json=as_json)


@app.command("trace")
def show_trace(
    file: Annotated[str, typer.Argument(metavar="FILE", help="what --trace wrote")],
    *,
    svg: Annotated[str, typer.Option(metavar="FILE", help="draw the last step in this file")] = "",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Say what the time of a trace went into."""
    with _errors_shown(debug=debug):
        from maniple import api

        _report(lambda listener: api.trace(TraceConfig(file=file, svg=svg), listener), render.trace_view, as_json=as_json)


@app.command()
def models(*, as_json: Json = False, debug: Debug = False) -> None:
    """List what MODEL may be."""
    with _errors_shown(debug=debug):
        from maniple.models import ZOO

        found = {name: {"description": family.description, "sizes": list(family.sizes)} for name, family in ZOO.items()}
        if as_json:
            _print_json(found)
        else:
            render.show(Console(), render.models_view(found))


def _report(command: Callable[[Listener], Report], view: Callable[[Report], RenderableType], *, as_json: bool) -> Report:
    """Run a command with progress shown, print what it found, and return that."""
    with _listener(quiet=as_json) as listener:
        found = command(listener)
    if as_json:
        _print_json(found)
    else:
        shown = view(found)
        if isinstance(shown, str):  # a text form, to be read back
            typer.echo(shown)
        else:
            render.show(Console(), shown)
    return found


def _print_json(value: object) -> None:
    typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode())


@contextmanager
def _listener(*, quiet: bool) -> Iterator[Listener]:
    """Show progress on standard error; none beside JSON unless a person watches."""
    console = Console(stderr=True)
    if quiet and not console.is_terminal:
        yield ignore
        return
    with progress_shown(console) as listener:
        yield listener


@contextmanager
def _errors_shown(*, debug: bool) -> Iterator[None]:
    """Turn errors made on purpose into one message and exit status 2; with `debug`, into a traceback as well."""
    try:
        yield
    except ManipleError as error:
        if debug:
            _print_traceback()
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        if debug:
            _print_traceback()
        typer.echo("error: PyTorch is not installed\n  try: pip install 'maniple[torch]'", err=True)
        raise typer.Exit(2) from error


def _print_traceback() -> None:
    import traceback

    typer.echo(traceback.format_exc(), err=True, nl=False)


def main() -> None:
    """Run the command line."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
