"""`embermq-bench p2p|fanin|fanout|catchup|idle|queue`, also `embermq bench`: load a broker and measure it."""

from __future__ import annotations

import functools
import gc
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import msgspec
import typer
import uvloop
from msgspec.structs import replace
from rich.console import Console

from embermq.mqtt.wire.version import ProtocolVersion
from embermq_bench.catch_up import CatchUpReport, run_catch_up, show_catch_up
from embermq_bench.errors import BenchError
from embermq_bench.idle import run_idle
from embermq_bench.process_cost import WatchedProcess, parse_all_watched
from embermq_bench.progress import StageBar
from embermq_bench.queue_report import QueueReport, show_queue
from embermq_bench.queue_scenario import run_queue
from embermq_bench.report import LoadReport, show_idle, show_load, to_json
from embermq_bench.scenario import run_load, run_paced
from embermq_bench.settings import Ack, Load, QueueLoad, Target
from embermq_bench.shape import Shape, fan_in, fan_out, pairs

EXIT_BROKEN_PROMISE = 1
EXIT_NOT_CARRIED_OUT = 2

app = typer.Typer(
    help="Load any MQTT broker and measure it. Ends with 1 when something acknowledged was lost "
    "(doubled at QoS 2, or out of the order of its key in a queue), with 2 when the run could not be carried out.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


class VersionOption(StrEnum):
    """MQTT versions by the names people use."""

    V311 = "3.1.1"
    V5 = "5"


_VERSIONS = {VersionOption.V311: ProtocolVersion.V311, VersionOption.V5: ProtocolVersion.V5}

Host = Annotated[str, typer.Option(help="Where the broker listens.")]
Port = Annotated[int, typer.Option(min=1, max=65_535, help="Its port, without TLS.")]
Version = Annotated[VersionOption, typer.Option("--version", help="MQTT version.")]
Username = Annotated[str | None, typer.Option(help="User name of all clients.")]
Ca = Annotated[str | None, typer.Option(help="File of certificates to trust: connections are TLS.")]
WebSockets = Annotated[bool, typer.Option("--websocket", help="Connections are WebSocket.")]
PasswordFromEnv = Annotated[str | None, typer.Option(help="Environment variable that holds the password.")]
Qos = Annotated[int, typer.Option(min=0, max=2, help="QoS of publishers and subscribers.")]
Payload = Annotated[int, typer.Option(min=16, help="Payload size, bytes.")]
Rate = Annotated[
    float, typer.Option(min=0, help="Messages/s over all publishers; 0: as fast as the window allows.")
]
Window = Annotated[
    int, typer.Option(min=1, max=65_535, help="Unacknowledged messages a publisher, at rate 0.")
]
Duration = Annotated[float, typer.Option(help="Length of the measured part, s.")]
Count = Annotated[
    int, typer.Option(min=0, help="Measure this many messages instead (duration + drain at most).")
]
Warmup = Annotated[float, typer.Option(min=0, help="Load before the measured part, s.")]
Drain = Annotated[float, typer.Option(min=0, help="Longest wait for the tail, s.")]
Persistent = Annotated[bool, typer.Option("--persistent", help="Persistent sessions; removed at the end.")]
Pid = Annotated[
    list[str] | None,
    typer.Option(
        help="Process whose cost is measured: ID or NAME=ID, several with commas between them; repeatable. "
        "Name all that serve the broker, such as redis=ID."
    ),
]
OfflineShare = Annotated[
    float,
    typer.Option(
        help="Part of the persistent subscribers that is away at any time, in turn: above 0, below 1. What one "
        "misses has to fit the broker's limit of its queue."
    ),
]
Away = Annotated[float, typer.Option(help="How long each of them stays away, s.")]
Paced = Annotated[
    float | None,
    typer.Option(
        help="Run saturated first, then measure at this share of the rate found: above 0, below 1 (0.5: half)."
    ),
]
Children = Annotated[bool, typer.Option("--children", help="Count descendants of these processes too.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


class Common(msgspec.Struct, frozen=True):
    """What all loads have: the broker, the load, whose cost is measured, and how the result is shown."""

    target: Target
    load: Load
    processes: Sequence[WatchedProcess]
    children: bool
    as_json: bool


def _common(
    *,
    host: Host = "127.0.0.1",
    port: Port = 1883,
    version: Version = VersionOption.V5,
    username: Username = None,
    password_from_env: PasswordFromEnv = None,
    ca: Ca = None,
    websocket: WebSockets = False,
    qos: Qos = 1,
    payload: Payload = 64,
    rate: Rate = 0.0,
    window: Window = 20,
    duration: Duration = 10.0,
    count: Count = 0,
    warmup: Warmup = 2.0,
    drain: Drain = 30.0,
    pid: Pid = None,
    children: Children = False,
    as_json: Json = False,
) -> Common:
    load = Load(
        qos=qos,
        payload_bytes=payload,
        rate=rate,
        window=window,
        duration_s=duration,
        count=count,
        warmup_s=warmup,
        drain_s=drain,
    )
    target = replace(_target(host, port, version, username, password_from_env), ca=ca, web_socket=websocket)
    return Common(target, load, _watched(pid), children, as_json)


def _loads(**defaults: object) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command that takes the options of `_common`, with other defaults where it wants them, behind its own.

    It gets them put together as its first argument; what typer sees is one list of options.
    """

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        shared = [
            option.replace(default=defaults.get(option.name, option.default))
            for option in inspect.signature(_common, eval_str=True).parameters.values()
        ]
        shared_names = {option.name for option in shared}

        @functools.wraps(command)
        def run(**given: Any) -> None:
            with _plain_errors():
                common = _common(**{name: value for name, value in given.items() if name in shared_names})
                command(common, **{name: given[name] for name in given if name not in shared_names})

        vars(run)["__signature__"] = inspect.Signature([*own, *shared])
        run.__annotations__ = {option.name: option.annotation for option in [*own, *shared]}
        del vars(run)["__wrapped__"]
        return run

    return wrap


@app.command()
@_loads()
def p2p(
    common: Common,
    *,
    count_of_pairs: Annotated[int, typer.Option("--pairs", min=1, help="Publishers, and subscribers.")] = 100,
    persistent: Persistent = False,
    offline_share: OfflineShare = 0.0,
    away_s: Away = 2.0,
    paced: Paced = None,
) -> None:
    """N publishers, each to a subscriber of its own."""
    load = replace(common.load, persistent=persistent, offline_share=offline_share, away_s=away_s)
    _carry_out(pairs(count_of_pairs), common, load, paced=paced)


@app.command()
@_loads()
def fanin(
    common: Common,
    *,
    publishers: Annotated[int, typer.Option(min=1, help="How many.")] = 100,
    subscriber_id: Annotated[
        str | None, typer.Option(help="Client id of the subscriber; several get -0, -1, … behind it.")
    ] = None,
    subscribers: Annotated[int, typer.Option(min=1, help="Each gets every message.")] = 1,
    group: Annotated[str, typer.Option(help="They share a subscription of this name instead.")] = "",
    persistent: Persistent = False,
) -> None:
    """N publishers to one subscriber, or to a few; waits for the tail."""
    shape = fan_in(publishers, subscriber_id, subscribers=subscribers, group=group)
    _carry_out(shape, common, replace(common.load, persistent=persistent))


@app.command()
@_loads()
def fanout(
    common: Common,
    *,
    subscribers: Annotated[int, typer.Option(min=1, help="How many.")] = 100,
    persistent: Persistent = False,
) -> None:
    """One publisher to N subscribers."""
    _carry_out(fan_out(subscribers), common, replace(common.load, persistent=persistent))


@app.command()
@_loads(count=200_000, duration=120.0)
def catchup(
    common: Common,
    *,
    pairs_: Annotated[int, typer.Option("--pairs", min=1, help="Publishers, and subscribers.")] = 100,
    subscriber_id: Annotated[
        str | None, typer.Option(help="All publish to one subscriber with this client id instead.")
    ] = None,
    pause: Annotated[float, typer.Option(min=0, help="After storing, and after draining, s.")] = 1.0,
) -> None:
    """N subscribers that are away and return.

    `--count` messages are stored for them meanwhile and drained then: what either half costs.
    """
    shape = pairs(pairs_) if subscriber_id is None else fan_in(pairs_, subscriber_id)
    gc.freeze()
    gc.disable()  # as in `_carry_out`
    with StageBar() as bar:
        report = uvloop.run(
            run_catch_up(
                common.target,
                shape,
                replace(common.load, persistent=True),
                pause_s=pause,
                watched=common.processes,
                children=common.children,
                on_stage=bar.show,
            )
        )
    _show(report, common, partial(show_catch_up, report))


@app.command()
@_loads(payload=1_024, window=100)
def queue(
    common: Common,
    *,
    name: Annotated[str, typer.Option("--queue", help="The queue; empty: one with a name of its own.")] = "",
    publishers: Annotated[int, typer.Option(min=1, help="How many.")] = 10,
    consumers: Annotated[int, typer.Option(min=1, help="How many, all of one group.")] = 10,
    partitions: Annotated[
        int, typer.Option(min=0, help="Partitions that the queue is made with; 0: as it is.")
    ] = 0,
    ordering: Annotated[str, typer.Option(help="none, partition or strict; empty: as it is.")] = "",
    http_port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65_535,
            help="Make it by the broker's HTTP API, and delete it at the end when it is one of this run; 0: make it "
            "by a publish to $admin/queue/<name>/config, which needs a rule that allows it.",
        ),
    ] = 0,
    token_from_env: Annotated[
        str | None,
        typer.Option(help="Environment variable that holds a token of the API, with the scope admin."),
    ] = None,
    keys: Annotated[int, typer.Option(min=0, help="Different partition keys; 0: messages without keys.")] = 0,
    ack: Annotated[Ack, typer.Option(help="What settles a message.")] = Ack.BATCH,
    ack_batch: Annotated[int, typer.Option(min=1, help="Messages in one $ack at most.")] = 50,
    prefetch: Annotated[int, typer.Option(min=1, help="Unsettled messages of a consumer.")] = 500,
) -> None:
    """N publishers to a durable queue, N consumers. The queue is EmberMQ's; lost, doubled and order are counted."""
    asked = QueueLoad(
        queue=name,
        publishers=publishers,
        consumers=consumers,
        partitions=partitions,
        ordering=ordering,
        http_port=http_port,
        keys=keys,
        ack=ack,
        ack_batch=ack_batch,
        prefetch=prefetch,
    )
    gc.freeze()
    gc.disable()  # as in `_carry_out`
    with StageBar() as bar:
        report = uvloop.run(
            run_queue(
                replace(common.target, token=_from_env(token_from_env)),
                common.load,
                asked,
                watched=common.processes,
                children=common.children,
                on_stage=bar.show,
            )
        )
    _show(report, common, partial(show_queue, report))


@app.command()
def idle(
    *,
    connections: Annotated[int, typer.Option(min=1, help="How many.")] = 1_000,
    host: Host = "127.0.0.1",
    port: Port = 1883,
    version: Version = VersionOption.V5,
    username: Username = None,
    password_from_env: PasswordFromEnv = None,
    hold: Annotated[float, typer.Option(help="How long the connections stay idle, s.")] = 5.0,
    resumed: Annotated[
        bool, typer.Option("--resumed", help="Each resumes a session that it has made before.")
    ] = False,
    pid: Pid = None,
    children: Children = False,
    as_json: Json = False,
) -> None:
    """Memory of idle connections. Opens them, waits, reads the memory of --pid."""
    with _plain_errors():
        target = _target(host, port, version, username, password_from_env)
        with StageBar() as bar:
            report = uvloop.run(
                run_idle(
                    target,
                    connections,
                    hold_s=hold,
                    resumed=resumed,
                    watched=_watched(pid),
                    children=children,
                    on_stage=bar.show,
                )
            )
        if as_json:
            typer.echo(to_json(report))
        else:
            show_idle(report, Console())


def _carry_out(shape: Shape, common: Common, load: Load, *, paced: float | None = None) -> None:
    gc.freeze()
    gc.disable()  # a pause of ours would count as latency of the broker; a run makes no cycles to speak of
    with StageBar() as bar:
        run = run_load if paced is None else partial(run_paced, share=paced)
        report = uvloop.run(
            run(
                common.target,
                shape,
                load,
                watched=common.processes,
                children=common.children,
                on_stage=bar.show,
            )
        )
    _show(report, common, partial(show_load, report))


def _show(
    report: LoadReport | QueueReport | CatchUpReport, common: Common, as_table: Callable[[Console], None]
) -> None:
    """The result; ends with 1 when a promise was broken."""
    if common.as_json:
        typer.echo(to_json(report))
    else:
        as_table(Console())
    if report.failures:
        raise typer.Exit(EXIT_BROKEN_PROMISE)


@contextmanager
def _plain_errors() -> Iterator[None]:
    """One line instead of a traceback when the run could not be carried out."""
    try:
        yield
    except BenchError as error:
        typer.echo(f"embermq: {error}", err=True)
        raise typer.Exit(EXIT_NOT_CARRIED_OUT) from error


def _target(
    host: str, port: int, version: VersionOption, username: str | None, password_from_env: str | None
) -> Target:
    value = _from_env(password_from_env)
    password = value.encode() if value is not None else None
    return Target(host=host, port=port, version=_VERSIONS[version], username=username, password=password)


def _from_env(name: str | None) -> str | None:
    """A secret; None when none was named."""
    if name is None:
        return None
    value = os.environ.get(name)
    if value is None:
        raise typer.BadParameter(f"the environment has no variable {name}")
    return value


def _watched(texts: list[str] | None) -> tuple[WatchedProcess, ...]:
    try:
        return parse_all_watched(texts or ())
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


if __name__ == "__main__":
    app()
