"""Two commits in turns: `make bench-against REV=COMMIT`, or `python -m benchmarks.against COMMIT`.

What a message costs in process (`benchmarks.in_process`), and with `--rounds-loopback 2` the same over loopback. Both
trees are measured by this tree's benchmarks, with the interpreter and the libraries that run them; turn by turn, so
that what else the machine does falls on both. The quotient is that of the medians of the turns. Both run the source, or
with `--compiled` what is compiled of each, whatever this tree has.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.brokers import Programs, RunningBroker
from benchmarks.machine import describe
from benchmarks.plan import FSYNC
from embermq.compiled import VARIABLE
from embermq_bench.report import LoadReport

HERE = Path(__file__).resolve().parent.parent
DEADLINE_S = 900.0
LOADS = {
    "loopback saturated": ("p2p", "--pairs", "100", "--persistent"),
    "loopback paced": ("p2p", "--pairs", "500", "--rate", "5000", "--persistent"),
    "loopback QoS 2": ("p2p", "--pairs", "100", "--persistent", "--qos", "2"),
    "loopback 30 % away": ("p2p", "--pairs", "100", "--persistent", "--offline-share", "0.3"),
}
LENGTH = ("--duration", "5", "--warmup", "2")


class Row(msgspec.Struct):
    """Microseconds of the processor in each turn, of either tree."""

    before: list[float] = msgspec.field(default_factory=list)
    after: list[float] = msgspec.field(default_factory=list)


def main(
    revision: Annotated[str, typer.Argument(help="The commit to compare with.")] = "HEAD",
    *,
    turns: Annotated[int, typer.Option(min=1, help="In process, of each tree.")] = 3,
    rounds_loopback: Annotated[int, typer.Option(min=0, help="Over loopback, of each tree.")] = 0,
    work: Annotated[list[str] | None, typer.Option(help="Of `benchmarks.in_process`; repeatable.")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="For each work and turn.")] = 2.0,
    compiled: Annotated[bool, typer.Option(help="Compile both trees first.")] = False,
) -> None:
    """This tree, as it stands, against a commit: microseconds of the broker's processor for one message."""
    rows: dict[str, Row] = {}
    os.environ[VARIABLE] = "1" if compiled else "0"
    with _checked_out(revision) as before:
        for tree in (before, HERE) if compiled else ():
            script = [sys.executable, str(tree / "scripts" / "compile")]
            subprocess.run(script, env=_of(tree) | {VARIABLE: "0"}, check=True, timeout=DEADLINE_S)
        for _ in range(turns):
            for name, (was, now) in _in_process(before, work or [], seconds).items():
                row = rows.setdefault(name, Row())
                row.before.append(was)
                row.after.append(now)
        for _ in range(rounds_loopback):
            for name, arguments in LOADS.items():
                row = rows.setdefault(name, Row())
                row.before.append(_loopback(before, arguments))
                row.after.append(_loopback(HERE, arguments))
    show(revision, rows, Console(width=120))


def _in_process(before: Path, work: list[str], seconds: float) -> dict[str, tuple[float, float]]:
    words = ["--json", "--seconds", str(seconds)]
    for name in work:
        words += ["--work", name]
    found = []
    for tree in (before, HERE):
        command = [sys.executable, "-m", "benchmarks.in_process", *words]
        done = subprocess.run(
            command, cwd=HERE, env=_of(tree), stdout=subprocess.PIPE, check=True, timeout=DEADLINE_S
        )
        found.append(msgspec.json.decode(done.stdout, type=dict[str, tuple[float, float]]))
    was, now = found
    return {name: (was[name][0], now[name][0]) for name in now}


def _loopback(tree: Path, arguments: tuple[str, ...]) -> float:
    with RunningBroker(FSYNC, Programs(mosquitto=""), environment=_of(tree)) as broker:
        watch = ("--port", str(broker.port), "--pid", str(broker.pid), "--json")
        command = [sys.executable, "-m", "embermq_bench.cli", *arguments, *LENGTH, *watch]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=DEADLINE_S)
    report = msgspec.json.decode(done.stdout, type=LoadReport)
    if report.failures or not report.messages_per_cpu_s:
        raise RuntimeError(f"{' '.join(arguments)}: {report.failures or 'nothing was measured'}")
    return 2e6 / report.messages_per_cpu_s


def _of(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree / "src")}


@contextmanager
def _checked_out(revision: str) -> Iterator[Path]:
    """The commit in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="embermq-before-") as directory:
        place = Path(directory) / "tree"
        subprocess.run(
            ["git", "worktree", "add", "--quiet", "--detach", str(place), revision], cwd=HERE, check=True
        )
        try:
            yield place
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(place)], cwd=HERE, check=True)


def show(revision: str, rows: dict[str, Row], console: Console) -> None:
    """A table."""
    machine = describe()
    table = Table("µs of the processor", f"{revision}", "this tree", "before/after")
    for name, row in rows.items():
        was, now = statistics.median(row.before), statistics.median(row.after)
        table.add_row(name, _all(row.before), _all(row.after), f"{was / now:.2f}")
    console.print(
        f"{machine.processor}, {machine.cores} cores, Python {machine.python}, load {machine.load_average[0]:.1f}"
    )
    console.print(table)


def _all(figures: list[float]) -> str:
    return "  ".join(f"{figure:.2f}" for figure in figures)


if __name__ == "__main__":
    typer.run(main)
