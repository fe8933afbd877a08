"""`embermq trace`: one message's life."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from embermq.app.config import Settings
from embermq.cli.options import OneOrAll, with_settings
from embermq.cli.terminal import Told, shown, table
from embermq.model.amounts import counted
from embermq.model.moments import iso_ms

if TYPE_CHECKING:
    from embermq.tools.trace_values import TracedDelivery, TracedMessage


@with_settings
def command(
    settings: Settings,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic of the message, or $queue/NAME.")],
    *,
    position: Annotated[
        str, typer.Option("--position", metavar="OFFSET", help="Where it is in the log: 1200 or 0:1200.")
    ] = "",
    time: Annotated[
        str,
        typer.Option(
            "--time", metavar="TIME", help="The first one accepted then or later; UTC without a zone."
        ),
    ] = "",
    message: Annotated[
        str,
        typer.Option("--message", metavar="ID", help="The message-id that consumers of a durable queue see."),
    ] = "",
    slot: OneOrAll = None,
) -> Told:
    """Tell the life of one message. Who published it, where it is stored, to whom it went, what became of it. Reads
    files; the broker need not run."""
    from embermq.tools.trace import trace
    from embermq.tools.trace_values import Wanted

    wanted = Wanted(topic=topic, position=position, time=time, message=message)
    found = trace(wanted, settings, slot)
    return Told(found, _lines(found))


def _lines(found: TracedMessage) -> list[str]:
    retain = ", with retain" if found.retain else ""
    lines = [] if found.slot is None else [f"slot         {found.slot}"]
    lines += [
        f"position     {found.position}",
        f"topic        {shown(found.topic)}",
        f"published    by {shown(found.publisher) or 'the broker'}, QoS {found.qos}{retain}",
        f"payload      {counted(found.payload_bytes, 'byte')}",
        f"accepted     {iso_ms(found.accepted_ms)}",
    ]
    if found.expires_ms:
        lines.append(f"expires      {iso_ms(found.expires_ms)}")
    if found.copy_of:
        lines.append(f"copied       from {found.copy_of}, whose client has published it")
    if found.replayed_from:
        lines.append(f"replayed     from {shown(found.replayed_from)}, says its publisher")
    if found.is_retained_now:
        lines.append("retained     it is what new subscribers of the topic get")
    passed = [name for name, is_past in sorted(found.sinks.items()) if is_past]
    lines.append(
        f"stored       in {found.found_in}; passed by {', '.join(passed) or 'no query of the pipeline'}"
    )
    for heading, deliveries in (
        ("application", found.applications),
        ("session", found.sessions),
        ("queue", found.queues),
    ):
        if deliveries:
            rows = [(shown(one.to), shown(one.by), _outcome(one)) for one in deliveries]
            lines += ["", *table([(heading, "by", "outcome"), *rows], names=3)]
    more = found.sessions_count - len(found.sessions)
    if more:
        lines.append(f"and {counted(more, 'session')} more")
    if not (found.applications or found.sessions or found.queues or found.copies):
        lines += ["", "no application was to get it, and no session that is there now"]
    for copy in found.copies:
        lines += ["", *_lines(copy)]
    return lines


def _outcome(one: TracedDelivery) -> str:
    return one.outcome if one.at_ms is None else f"{one.outcome}, {iso_ms(one.at_ms)}"
