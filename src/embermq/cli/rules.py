"""`embermq rules`: SQL over messages, whose rows become messages."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec
import typer

from embermq.admin import access_operations as ops
from embermq.admin.values import PipelineRuleView
from embermq.app.config import Settings
from embermq.app.control import ControlClient
from embermq.app.directory_client import rules_here
from embermq.app.slots import named_slot
from embermq.cli.control import broker_command
from embermq.cli.options import Slot, Tasks, with_settings
from embermq.cli.terminal import Told, group, shown, table
from embermq.model.amounts import counted
from embermq.pipeline.rules.settings import CheckedRule

EXIT_REFUSED = 3
PAYLOAD_CHARACTERS = 100

app = group("Rules of the pipeline: SQL whose rows are published.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The rule.")]
Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Else all.")]


class Target(Enum):
    """What a rule that is put may write to: nothing that names other machines."""

    MQTT, QUEUE, LAKE = "mqtt", "queue", "lake"


@broker_command(app, "list", here=rules_here)
def list_rules(broker: ControlClient) -> Told:
    """Show the rules of the configuration, and those that were put."""
    found = [msgspec.convert(one, PipelineRuleView) for one in broker.ask(ops.LIST_PIPELINE_RULES)]
    rows = [(one.name, one.target, shown(" ".join(one.sql.split()))) for one in found]
    return Told(found, table([("rule", "to", "sql"), *rows], names=3))


@broker_command(app, "put")
def put(
    broker: ControlClient,
    name: Name,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="What it selects.")],
    *,
    to: Annotated[Target, typer.Option("--to", help="Where its rows go.")] = Target.MQTT,
    queue: Annotated[str, typer.Option("--queue", help="Which one, with --to queue.")] = "",
    every: Annotated[str, typer.Option("--every", help="How often, of a rule over a window of time.")] = "",
    over: Annotated[str, typer.Option("--over", help="How long its window is.")] = "",
    qos: Annotated[int, typer.Option("--qos", min=1, max=2, help="Of what it publishes.")] = 1,
    sees_rules: Annotated[
        bool, typer.Option("--sees-rules", help="It sees what other rules have published, too.")
    ] = False,
) -> list[str]:
    """Write a rule, or another SQL for it. The pipeline of the running broker starts anew with it."""
    more = {"queue": queue, "every": every, "over": over, "qos": qos, "sees_rules": sees_rules}
    broker.ask(ops.PUT_PIPELINE_RULE, rule=name, sql=sql, to=to.value, **more)
    return [f"put the rule {shown(name)}; embermq pipeline status says whether Spark understands it"]


@broker_command(app, "delete")
def delete(broker: ControlClient, name: Name) -> list[str]:
    """Remove a rule that was put. One of the configuration is removed there."""
    broker.ask(ops.REMOVE_PIPELINE_RULE, rule=name)
    return [f"removed the rule {shown(name)}"]


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
    name: Name,
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
    name: Name,
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
