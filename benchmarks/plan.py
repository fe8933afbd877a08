"""What is measured: the variants of the brokers and the scenarios they meet in."""

from __future__ import annotations

import msgspec

APPLICATION_ID = "bench-application"


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """A broker and how it is started. `arguments` follow `embermq run`."""

    name: str
    broker: str = "embermq"
    arguments: tuple[str, ...] = ()
    has_pipeline: bool = False


class Bar(msgspec.Struct, frozen=True):
    """What a figure of a scenario has to reach, and what it should.

    kind `ratio`: times the other broker's; `least` and `most`: this figure of EmberMQ alone.
    """

    title: str
    must: float
    aim: float
    figure: str = "in+out a CPU s"
    kind: str = "ratio"


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One load and the variants that meet it, in the order in which they take turns.

    `arguments` follow `embermq bench`; `full` and `quick` are what a long and a short run add. Over `tls` or
    `websocket` the brokers listen with that alone. Its `bars` make rows of the table at the end; a scenario without
    them, and a variant beside the usual two, is measured when it is named.
    """

    name: str
    title: str
    arguments: tuple[str, ...]
    full: tuple[str, ...]
    quick: tuple[str, ...]
    variants: tuple[Variant, ...]
    transport: str = "tcp"
    bars: tuple[Bar, ...] = ()


def embermq(name: str, *, durability: str = "fsync", queries: tuple[str, ...] = ()) -> Variant:
    """EmberMQ with this durability and these pipeline queries (none: no pipeline)."""
    arguments = ["--set", f"log.durability={durability}"]
    if queries:
        listed = ",".join(f'"{query}"' for query in queries)
        arguments += ["--set", f"pipeline.queries=[{listed}]"]
        arguments += ["--set", f'clients.application_ids=["{APPLICATION_ID}"]']
    else:
        arguments.append("--no-pipeline")
    return Variant(name=name, arguments=tuple(arguments), has_pipeline=bool(queries))


MOSQUITTO = Variant(name="mosquitto", broker="mosquitto")
RUMQTTD = Variant(name="rumqttd", broker="rumqttd")
"""Has a part in every scenario when the environment names one."""
FSYNC = embermq("embermq fsync")
OS = embermq("embermq os", durability="os")
MEMORY = embermq("embermq memory", durability="memory")
DISPATCH = embermq("embermq fsync, dispatch", queries=("dispatch",))
DISPATCH_ARCHIVE = embermq("embermq fsync, dispatch, archive", queries=("dispatch", "archive"))

USUAL = (MOSQUITTO, FSYNC)

_LONG = ("--duration", "8", "--warmup", "2")
_SHORT = ("--duration", "3", "--warmup", "1")


def _load(
    name: str,
    words: str,
    *bars: Bar,
    variants: tuple[Variant, ...] = USUAL,
    transport: str = "tcp",
    title: str = "",
) -> Scenario:
    """A load of persistent sessions for some seconds."""
    return Scenario(
        name=name,
        title=title or bars[0].title,
        arguments=(*words.split(), "--persistent"),
        full=_LONG,
        quick=_SHORT,
        variants=variants,
        transport=transport,
        bars=bars,
    )


# What EmberMQ must and should reach was set as ratios to Mosquitto 2.1.2, which Debian does not have. Where both of its
# versions were measured on one machine the bars are these times the quotient of the two, so that they hold for 2.0.11.
SCENARIOS = (
    _load(
        "saturated",
        "p2p --pairs 100 --window 10",
        Bar("p2p 100 pairs, window 10, saturated", 1.80, 2.70),
        variants=(MOSQUITTO, FSYNC, OS, MEMORY, DISPATCH, DISPATCH_ARCHIVE),
    ),
    _load(
        "paced",
        "p2p --pairs 500 --rate 10000",
        Bar("p2p 500 pairs, paced 10,000/s", 0.92, 1.03),
        Bar("its p50, ms", 2, 1, "delivery p50 ms", "most"),
        Bar("its p99, ms", 15, 8, "delivery p99 ms", "most"),
        variants=(MOSQUITTO, FSYNC, DISPATCH, DISPATCH_ARCHIVE),
    ),
    _load(
        "half",
        "p2p --pairs 100 --window 10 --paced 0.5",
        Bar("half of its own saturated rate, p99, ms", 10, 10, "delivery p99 ms", "most"),
        variants=(MOSQUITTO, FSYNC, OS),
    ),
    _load("fanin", "fanin --publishers 200 --window 5", Bar("fan-in 200 to 1, window 5", 1.07, 1.60)),
    _load("fanout1", "fanout --subscribers 500", Bar("fan-out 1 to 500, QoS 1", 1.95, 2.61)),
    _load("fanout0", "fanout --subscribers 500 --qos 0", Bar("fan-out 1 to 500, QoS 0", 4.59, 9.18)),
    _load("qos2", "p2p --pairs 100 --qos 2", Bar("QoS 2 p2p, 100 pairs", 1.46, 2.19)),
    _load("1k", "p2p --pairs 100 --payload 1024", Bar("1 KiB, 100 pairs", 1.66, 2.21)),
    _load("64k", "p2p --pairs 20 --payload 65536 --window 5", Bar("64 KiB, 20 pairs", 0.64, 0.90)),
    _load("1m", "p2p --pairs 4 --payload 1048576 --window 2", Bar("1 MiB, 4 pairs", 0.51, 0.77)),
    _load("tls", "p2p --pairs 100 --window 10", Bar("TLS, 100 pairs", 1.2, 1.6), transport="tls"),
    _load(
        "websocket",
        "p2p --pairs 100 --window 10",
        Bar("WebSocket, 100 pairs", 1.0, 1.4),
        transport="websocket",
    ),
    _load(
        "lone",
        "p2p --pairs 1 --window 1",
        Bar("one publisher, window 1: p50 above fsync's, ms", 0.5, 0.3, "PUBACK p50 above fsync ms", "most"),
    ),
    Scenario(
        name="stored",
        title="200,000 messages for 100 that are away, and their return",
        arguments=("catchup", "--pairs", "100"),
        full=(),
        quick=("--count", "20000"),
        variants=USUAL,
        bars=(
            Bar("stored for the absent", 0.7, 1.0, "stored a CPU s"),
            Bar("drained", 0.5, 0.8, "drained a CPU s"),
        ),
    ),
    Scenario(
        name="queue",
        title="Durable queue, 10 publishers to 10 consumers, saturated",
        arguments=("queue", "--payload", "64"),
        full=_LONG,
        quick=_SHORT,
        variants=(FSYNC,),
        bars=(Bar("queue 10 x 10, messages a CPU s", 20_000, 30_000, "messages a CPU s", "least"),),
    ),
    Scenario(
        name="idle",
        title="Idle connections",
        arguments=("idle", "--hold", "2"),
        full=("--connections", "15000"),
        quick=("--connections", "1000"),
        variants=USUAL,
        bars=(
            Bar("connects, clean", 0.7, 1.0, "connects a CPU s"),
            Bar("KiB for an idle connection", 2.5, 2.5, "KiB a connection", "most"),
        ),
    ),
    Scenario(
        name="resumed",
        title="Connections that resume a session with one subscription",
        arguments=("idle", "--hold", "0.5", "--resumed"),
        full=("--connections", "5000"),
        quick=("--connections", "1000"),
        variants=USUAL,
        bars=(Bar("connects, resumed", 0.5, 0.8, "connects a CPU s"),),
    ),
    _load(
        "away",
        "p2p --pairs 100 --offline-share 0.3",
        variants=(MOSQUITTO, FSYNC, OS),
        title="QoS 1 peer to peer, 100 pairs saturated, 30 % of the subscribers away for 2 s each",
    ),
    Scenario(
        name="application",
        title="QoS 1 fan-in, 5,000 msg/s from 100 publishers to one subscriber (an APPLICATION under dispatch)",
        arguments=(
            *["fanin", "--publishers", "100", "--rate", "5000", "--persistent", "--subscriber-id"],
            APPLICATION_ID,
        ),
        full=("--duration", "20", "--warmup", "40"),  # a JVM that has just started compiles at first
        quick=("--duration", "5", "--warmup", "15"),
        variants=(MOSQUITTO, FSYNC, DISPATCH),
    ),
)


def chosen(scenarios: list[str], variants: list[str], *, rumqttd: bool = False) -> list[Scenario]:
    """Those of these names; where none are named all that have bars, and the usual variants. Raises ValueError."""
    known_scenarios = {scenario.name for scenario in SCENARIOS}
    known_variants = {variant.name for scenario in SCENARIOS for variant in scenario.variants}
    if rumqttd:
        known_variants.add(RUMQTTD.name)
    for name, known in [(name, known_scenarios) for name in scenarios] + [
        (name, known_variants) for name in variants
    ]:
        if name not in known:
            raise ValueError(f"{name!r} is unknown; there are {', '.join(sorted(known))}")
    wanted = variants or [variant.name for variant in (*USUAL, RUMQTTD)]
    others = (RUMQTTD,) if rumqttd else ()
    return [
        msgspec.structs.replace(
            scenario,
            variants=tuple(
                variant
                for variant in (*scenario.variants, *(others if MOSQUITTO in scenario.variants else ()))
                if variant.name in wanted
            ),
        )
        for scenario in SCENARIOS
        if (scenario.name in scenarios if scenarios else scenario.bars)
    ]
