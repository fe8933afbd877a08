"""`embermq rules`: SQL over messages, whose rows become messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from embermq.app.config import Settings
from embermq.app.slots import named_slot
from embermq.cli.options import Slot, Tasks, with_settings
from embermq.cli.terminal import Told, group, shown, table
from embermq.model.amounts import counted

if TYPE_CHECKING:
    from embermq.pipeline.rules.values import CheckedRule

EXIT_REFUSED = 3
PAYLOAD_CHARACTERS = 100

app = group("Rules of the pipeline: SQL whose rows are published.")

Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Else all.")]


@app.command("list")
@with_settings
def list_rules(settings: Settings) -> Told:
    """Show the rules of the configuration."""
    from embermq.tools.rules import chosen

    found = chosen((), settings)
    about = [
        {"name": name, **msgspec.to_builtins(rule), "url": rule.shown_url} for name, rule in found.items()
    ]
    rows = [
        (name, rule.queue or rule.shown_url or rule.table or rule.to, shown(" ".join(rule.sql.split())))
        for name, rule in found.items()
    ]
    return Told(about, table([("rule", "to", "sql"), *rows], names=3))


@app.command("check")
@with_settings
def check(settings: Settings, names: Names = None) -> Told:
    """Let Spark understand rules. Says which ones are refused and why. The broker need not run."""
    from embermq.tools.rules import check_rules_sql

    found = check_rules_sql(names or (), settings)
    about = [{"name": name, "refused": one.refused, "hint": one.hint} for name, one in found.items()]
    rows = [(name, _said(one)) for name, one in found.items()]
    code = EXIT_REFUSED if any(one.refused for one in found.values()) else 0
    return Told(about, table([("rule", "found"), *rows], names=2), code)


def _said(found: CheckedRule) -> str:
    if found.refused:
        return shown(found.refused)
    return f"is right; {found.hint}" if found.hint else "is right"


@app.command("errors")
@with_settings
def errors(
    settings: Settings,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The rule.")],
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000, help="How many at most.")] = 20,
) -> Told:
    """Show what a rule could not use, and why. Also what it made that the broker has not taken; the newest messages.
    The broker need not run."""
    from embermq.tools.rules import messages_set_aside

    found = messages_set_aside(name, settings, limit)
    rows = [(f"{one.partition}:{one.offset}", one.what, shown(one.reason)) for one in found]
    return Told(found, table([("of message", "what", "reason"), *rows], names=3))


@app.command("test")
@with_settings
def try_it(
    settings: Settings,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The rule.")],
    *,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="POSITION|TIME",
            help="The first one, or `earliest`; times without zone are UTC.",
        ),
    ],
    end: Annotated[
        str,
        typer.Option(
            "--to", metavar="POSITION|TIME", help="The first one that is left out; else what is there now."
        ),
    ] = "",
    limit: Annotated[int, typer.Option("--limit", min=0, max=10_000, help="Messages that are shown.")] = 20,
    tasks: Tasks = 0,
    slot: Slot = None,
) -> Told:
    """Show what a rule would have published. Reads past messages of the log and the lake. Nothing is published; the
    broker may be running."""
    from embermq.tools.rules import RuleTrial, run_trial

    order = RuleTrial(name=name, start=start, end=end, shown=limit, tasks=tasks)
    found = run_trial(order, named_slot(settings, slot))
    lines = [
        f"seen       {counted(found.records, 'message')}",
        f"published  {found.messages:,} would have been",
    ]
    if found.shown:
        rows = [
            (f"{one.partition}:{one.offset}", shown(one.topic), shown(one.payload)[:PAYLOAD_CHARACTERS])
            for one in found.shown
        ]
        lines += ["", *table([("of message", "topic", "payload"), *rows], names=3)]
    return Told(found, lines)
