"""`embermq pub`: publish a message, a file, or each line of standard input."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

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
    pairs,
)
from embermq_client.commands.kept import KeptSession
from embermq_client.message import QUEUE_PREFIX

__all__ = ["CONTEXT_SETTINGS", "command"]

LINES_WAITING_MAX = 100
EXPIRY_S_MAX = 4_294_967_295
EXCHANGE_S = 300
"""How long a broker keeps the session of QoS 2 after a lost connection: more than anybody waits for an answer."""


Topic = Annotated[
    str, typer.Option("-t", "--topic", metavar="TOPIC", help="Where to; $queue/NAME is a queue.")
]
Text = Annotated[str | None, typer.Option("-m", "--message", metavar="TEXT", help="The payload, as UTF-8.")]
File = Annotated[
    Path | None, typer.Option("-f", "--file", metavar="FILE", help="A file that is the payload.")
]
Lines = Annotated[bool, typer.Option("-l", "--stdin-line", help="Each line of standard input is a message.")]
Whole = Annotated[
    bool, typer.Option("-s", "--stdin-file", help="Standard input, to its end, is the payload.")
]
Empty = Annotated[
    bool, typer.Option("-n", "--null-message", help="No payload: with -r deletes what is retained.")
]
Qos = Annotated[
    int,
    typer.Option(
        "-q", "--qos", min=0, max=2, help="1, or 2: it is done when the broker has stored it, 2: once."
    ),
]
Retain = Annotated[bool, typer.Option("-r", "--retain", help="Keep it for later subscribers.")]
Expiry = Annotated[
    int | None,
    typer.Option("--expiry", metavar="SECONDS", min=0, max=EXPIRY_S_MAX, help="Nobody gets it later."),
]
ContentType = Annotated[
    str | None, typer.Option("--content-type", metavar="TYPE", help="What the payload is.")
]
ResponseTopic = Annotated[
    str | None, typer.Option("--response-topic", metavar="TOPIC", help="Where a reply is waited for.")
]
Correlation = Annotated[
    str | None, typer.Option("--correlation-data", metavar="TEXT", help="What the reply gives back.")
]
UserProperties = Annotated[
    list[str] | None, typer.Option("--user-property", metavar="NAME=VALUE", help="Repeatable.")
]
PartitionKey = Annotated[
    str | None,
    typer.Option("--partition-key", metavar="KEY", help="Of a queue: those of one key keep order."),
]
DedupId = Annotated[
    str | None, typer.Option("--dedup-id", metavar="ID", help="Of a queue: taken once within its window.")
]
Delay = Annotated[
    float | None, typer.Option("--delay", metavar="SECONDS", min=0, help="Of a queue: nobody gets it before.")
]


def command(
    *,
    topic: Topic,
    message: Text = None,
    file: File = None,
    lines: Lines = False,
    whole: Whole = False,
    empty: Empty = False,
    qos: Qos = 1,
    retain: Retain = False,
    expiry: Expiry = None,
    content_type: ContentType = None,
    response_topic: ResponseTopic = None,
    correlation: Correlation = None,
    user_property: UserProperties = None,
    key: PartitionKey = None,
    dedup_id: DedupId = None,
    delay: Delay = None,
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
    """Publish to a topic or a queue."""
    if sum((message is not None, file is not None, lines, whole, empty)) != 1:
        raise typer.BadParameter("say once what to publish: -m TEXT, -f FILE, -l, -s, or -n")
    connection = Connection(
        host=host, port=port, client_id=client_id, username=username, password=password,
        password_file=password_file, tls=tls, cafile=cafile, cert=cert, key=private_key,
    )  # fmt: skip
    given = Properties(
        message_expiry_interval=expiry,
        content_type=content_type,
        response_topic=response_topic,
        correlation_data=None if correlation is None else correlation.encode(),
        user_properties=pairs(user_property) + _of_queue(topic, key=key, dedup_id=dedup_id, delay=delay),
    )
    one = None if lines else _payload(message, file, whole=whole)
    publish = _publish_once if qos == 2 else partial(_publish, qos=qos)
    carry_out(publish(connection, topic, given, _messages(one), retain=retain))


def _payload(message: str | None, file: Path | None, *, whole: bool) -> bytes:
    """Of the one message. Raises OSError."""
    if message is not None:
        return message.encode()
    if file is not None:
        return file.read_bytes()
    return sys.stdin.buffer.read() if whole else b""


def _of_queue(
    topic: str, *, key: str | None, dedup_id: str | None, delay: float | None
) -> tuple[tuple[str, str], ...]:
    """What a queue is told by user properties. Raises BadParameter for another topic."""
    told = {
        "partition-key": key,
        "dedup-id": dedup_id,
        "delay": None if delay is None else f"{delay:.3f}",
    }
    given = tuple((name, value) for name, value in told.items() if value is not None)
    if given and not topic.startswith(QUEUE_PREFIX):
        raise typer.BadParameter(f"--{given[0][0]} is for queues, and {topic!r} is none: {QUEUE_PREFIX}NAME")
    return given


async def _publish(
    connection: Connection,
    topic: str,
    given: Properties,
    messages: AsyncIterator[bytes],
    *,
    qos: int,
    retain: bool,
) -> None:
    """One after the other, so in their order."""
    names = {
        "MessageExpiryInterval": given.message_expiry_interval,
        "ContentType": given.content_type,
        "ResponseTopic": given.response_topic,
        "CorrelationData": given.correlation_data,
    }
    others = {name: value for name, value in names.items() if value is not None}
    async with connection.client() as client:
        async for payload in messages:
            await client.publish(topic, payload, given.user_properties, qos=qos, retain=retain, **others)


async def _publish_once(
    connection: Connection, topic: str, given: Properties, messages: AsyncIterator[bytes], *, retain: bool
) -> None:
    """The same at QoS 2, on a session that outlives a lost connection and nothing else."""
    async with KeptSession(connection.options(), expiry_s=EXCHANGE_S, is_new=True) as session:
        async for payload in messages:
            await session.publish(topic, payload, given, retain=retain)


async def _messages(one: bytes | None) -> AsyncIterator[bytes]:
    """`one`, or else the lines that come on standard input."""
    if one is not None:
        yield one
        return
    lines: asyncio.Queue[bytes] = asyncio.Queue(LINES_WAITING_MAX)
    reading = threading.Thread(target=_read_lines, args=(asyncio.get_running_loop(), lines), daemon=True)
    reading.start()
    while line := await lines.get():
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def _read_lines(loop: asyncio.AbstractEventLoop, lines: asyncio.Queue[bytes]) -> None:
    """To the end of standard input, which is an empty line here. On a thread that an interrupt need not wait for."""
    line = b"first"
    with suppress(CancelledError, RuntimeError):  # nobody takes them any more
        while line:
            line = sys.stdin.buffer.readline()
            asyncio.run_coroutine_threadsafe(lines.put(line), loop).result()
