"""`embermq sub`: print what comes on topics, and on queues, which it consumes."""

from __future__ import annotations

import asyncio
import json
import sys
from base64 import b64encode
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from embermq.mqtt.wire.packets import Publish
from embermq.mqtt.wire.properties import Properties
from embermq_client.commands.connecting import (
    CONTEXT_SETTINGS,
    CaFile,
    Certificate,
    ClientId,
    Connection,
    Host,
    Key,
    Password,
    PasswordFile,
    Port,
    Tls,
    Username,
    carry_out,
)
from embermq_client.commands.kept import KeptSession
from embermq_client.errors import ClientError
from embermq_client.message import QUEUE_PREFIX, Message
from embermq_client.queue import Consumer
from embermq_client.subscription import TopicMessage, TopicSubscription

__all__ = ["CONTEXT_SETTINGS", "command"]

PREFETCH_MAX = 65_535
EXPIRY_S_MAX = 4_294_967_295
"""As a session expiry: for ever, which a broker may shorten."""
ONLY_OF_NEW, NEVER = 1, 2
"""Retain handling: retained messages with a subscription that was not there before, or with none."""


Topics = Annotated[
    list[str],
    typer.Option(
        "-t", "--topic", metavar="FILTER", help="Topics; $share/GROUP/FILTER; $queue/NAME. Repeatable."
    ),
]
Qos = Annotated[int, typer.Option("-q", "--qos", min=0, max=2, help="At most. Queues have 1.")]
Count = Annotated[
    int | None, typer.Option("-C", "--count", metavar="N", min=1, help="Leave after N messages.")
]
Wait = Annotated[
    float | None,
    typer.Option("-W", "--wait", metavar="SECONDS", min=0.001, max=1e9, help="Leave after that time."),
]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="The topic before each payload.")]
NoLine = Annotated[
    bool, typer.Option("-N", "--no-line-end", help="Nothing after a payload that it has not itself.")
]
Fresh = Annotated[bool, typer.Option("-R", "--no-retained", help="Only what is published from now on.")]
AsJson = Annotated[bool, typer.Option("--json", help="An object a line, with the properties.")]
Group = Annotated[str | None, typer.Option("--group", metavar="NAME", help="Of a queue: the consumer group.")]
Start = Annotated[
    str | None,
    typer.Option("--start", metavar="POSITION", help="Of a queue and a new group: earliest, latest, a time."),
]
NoAck = Annotated[
    bool, typer.Option("--no-ack", help="Of a queue: do not settle; it is given back at the end.")
]
Keep = Annotated[
    bool,
    typer.Option("-c", "--keep", help="Keep the session of -i, and go on where it was when it comes again."),
]
Expiry = Annotated[
    int | None,
    typer.Option(
        "-x",
        "--session-expiry",
        metavar="SECONDS",
        min=1,
        max=EXPIRY_S_MAX,
        help="With -c: for so long; else for as long as the broker does.",
    ),
]


def command(
    *,
    topics: Topics,
    qos: Qos = 1,
    count: Count = None,
    wait: Wait = None,
    verbose: Verbose = False,
    no_line: NoLine = False,
    fresh: Fresh = False,
    as_json: AsJson = False,
    is_kept: Keep = False,
    expiry: Expiry = None,
    group: Group = None,
    start: Start = None,
    keep: NoAck = False,
    host: Host = "localhost",
    port: Port = None,
    client_id: ClientId = None,
    username: Username = None,
    password: Password = None,
    password_file: PasswordFile = None,
    tls: Tls = False,
    cafile: CaFile = None,
    cert: Certificate = None,
    private_key: Key = None,
) -> None:
    """Subscribe to topics, or consume a queue."""
    if len(set(topics)) < len(topics):
        raise typer.BadParameter("-t names the same twice")
    if not any(topic.startswith(QUEUE_PREFIX) for topic in topics) and (group or start or keep):
        raise typer.BadParameter(f"--group, --start and --no-ack are for queues: -t '{QUEUE_PREFIX}NAME'")
    connection = Connection(
        host=host, port=port, client_id=client_id, username=username, password=password,
        password_file=password_file, tls=tls, cafile=cafile, cert=cert, key=private_key,
    )  # fmt: skip
    if is_kept and (client_id is None or any(topic.startswith(QUEUE_PREFIX) for topic in topics)):
        raise typer.BadParameter("-c keeps the session of a client id, -i ID; queues have --group for that")
    if expiry is not None and not is_kept:
        raise typer.BadParameter("-x goes with -c")
    printer = _Printer(
        count, as_json=as_json, verbose=verbose, ends_lines=not no_line, fresh=fresh and not is_kept
    )
    if is_kept:
        kept = KeptSession(
            connection.options(),
            expiry_s=EXPIRY_S_MAX if expiry is None else expiry,
            is_new=False,
            take=printer.take_packet,
        )
        retained = NEVER if fresh else ONLY_OF_NEW
        carry_out(_keep(kept, topics, qos, printer, retain_handling=retained, wait_s=wait))
        return
    prefetch = None if count is None else min(count, PREFETCH_MAX) if keep else 1
    consuming = {"group": group, "start": start, "prefetch": prefetch}
    carry_out(_subscribe(connection, topics, qos, printer, consuming, acks=not keep, wait_s=wait))


class _Printer:
    """Prints messages until it has printed `count`."""

    def __init__(
        self, count: int | None, *, as_json: bool, verbose: bool, ends_lines: bool, fresh: bool
    ) -> None:
        self.printed = 0
        self.count = count
        self.is_full = asyncio.Event()
        self._as_json = as_json
        self._verbose = verbose
        self._ends_lines = ends_lines
        self._fresh = fresh
        self._at_terminal = sys.stdout.isatty()

    def take_packet(self, packet: Publish) -> bool:
        """The same of a packet."""
        return self.take(_message_of(packet))

    def take(self, message: TopicMessage | Message) -> bool:
        """Whether it is on its way to the reader. Raises BrokenPipeError."""
        if self.is_full.is_set():
            return False
        if self._fresh and isinstance(message, TopicMessage) and message.retain:
            return False
        if self._as_json:
            data = json.dumps(_told(message), ensure_ascii=False).encode()
        else:
            data = message.topic.encode() + b" " + message.payload if self._verbose else message.payload
        if self._at_terminal and not self._as_json:
            data = _shown(data)
        out = sys.stdout.buffer
        out.write(data + b"\n" if self._ends_lines or self._as_json else data)
        out.flush()
        self.printed += 1
        if self.count is not None and self.printed >= self.count:
            self.is_full.set()
        return True


def _message_of(packet: Publish) -> TopicMessage:
    given = packet.properties or Properties()
    return TopicMessage(
        topic=packet.topic,
        payload=bytes(packet.payload),
        qos=packet.qos,
        retain=packet.retain,
        properties=given.user_properties,
        content_type=given.content_type,
        response_topic=given.response_topic,
        correlation=given.correlation_data,
        expiry_s=given.message_expiry_interval,
        is_text=given.payload_format_indicator == 1,
    )


def _shown(data: bytes) -> bytes:
    """For a terminal, which a payload must not steer."""
    text = data.decode(errors="backslashreplace")
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode()
        for each in text
    ).encode()


def _told(message: TopicMessage | Message) -> dict[str, Any]:
    """Names are those of the library's attributes; what a message does not have is left out."""
    told: dict[str, Any] = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "topic": message.topic,
    }
    try:
        told["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        told["payload_base64"] = b64encode(message.payload).decode()
    if isinstance(message, TopicMessage):
        told |= {"qos": message.qos, "retain": message.retain}
    else:
        told |= {
            name: getattr(message, name)
            for name in ("id", "group", "delivery_count", "partition", "sequence")
        }
        told |= {"key": message.key}
    told |= {
        "content_type": message.content_type,
        "response_topic": message.response_topic,
        "correlation": None if message.correlation is None else message.correlation.decode(errors="replace"),
        "expiry_s": message.expiry_s,
        "properties": [list(pair) for pair in message.properties] or None,
    }
    return {name: value for name, value in told.items() if value is not None}


async def _subscribe(
    connection: Connection,
    topics: list[str],
    qos: int,
    printer: _Printer,
    consuming: dict[str, Any],
    *,
    acks: bool,
    wait_s: float | None,
) -> None:
    """Until it is told to leave. Raises ClientError, also when the time was over before there were enough."""
    async with connection.client() as client, AsyncExitStack() as subscriptions:
        tasks: list[asyncio.Future[object]] = []
        for topic in topics:
            work: Coroutine[Any, Any, object]
            if topic.startswith(QUEUE_PREFIX):
                consumer = await subscriptions.enter_async_context(client.queue(topic).consume(**consuming))
                work = _consume(consumer, printer, acks=acks)
            else:
                plain = await subscriptions.enter_async_context(client.subscribe(topic, qos=qos))
                work = _print(plain, printer)
            tasks.append(asyncio.ensure_future(work))
        await _until_enough(tasks, printer, wait_s)


async def _keep(
    kept: KeptSession,
    topics: list[str],
    qos: int,
    printer: _Printer,
    *,
    retain_handling: int,
    wait_s: float | None,
) -> None:
    """The same over a session that is kept: a message is answered when it was printed."""
    async with kept as session:
        await session.subscribe(topics, qos=qos, retain_handling=retain_handling)
        await _until_enough([asyncio.ensure_future(session.failed())], printer, wait_s)


async def _until_enough(tasks: list[asyncio.Future[object]], printer: _Printer, wait_s: float | None) -> None:
    """Or until one of the tasks, which it cancels, ends. Raises ClientError when the time was over before."""
    tasks = [asyncio.ensure_future(printer.is_full.wait()), *tasks]
    try:
        done, _ = await asyncio.wait(tasks, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    for task in done:
        task.result()
    if not done and printer.count is not None:
        raise ClientError(f"{printer.printed} of {printer.count} messages in {wait_s:g} s")


async def _print(subscription: TopicSubscription, printer: _Printer) -> None:
    async for message in subscription:
        printer.take(message)


async def _consume(consumer: Consumer, printer: _Printer, *, acks: bool) -> None:
    """A message is settled when it was printed; one that was not goes to somebody else."""
    async for message in consumer:
        if printer.take(message) and acks:
            await message.ack()
