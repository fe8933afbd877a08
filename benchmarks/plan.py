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


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One load and the variants that meet it, in the order in which they take turns.

    `arguments` follow `embermq bench`; `full` and `quick` are what a long and a short run add.
    """

    name: str
    title: str
    arguments: tuple[str, ...]
    full: tuple[str, ...]
    quick: tuple[str, ...]
    variants: tuple[Variant, ...]


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

_LONG = ("--duration", "15", "--warmup", "3")
_SHORT = ("--duration", "3", "--warmup", "1")

SCENARIOS = (
    Scenario(
        name="saturated",
        title="QoS 1 peer to peer, 100 pairs saturated, persistent sessions",
        arguments=("p2p", "--pairs", "100", "--persistent"),
        full=_LONG,
        quick=_SHORT,
        variants=(MOSQUITTO, FSYNC, OS, MEMORY, DISPATCH, DISPATCH_ARCHIVE),
    ),
    Scenario(
        name="paced",
        title="QoS 1 peer to peer, 10,000 msg/s over 500 pairs, persistent sessions",
        arguments=("p2p", "--pairs", "500", "--rate", "10000", "--persistent"),
        full=_LONG,
        quick=_SHORT,
        variants=(MOSQUITTO, FSYNC, DISPATCH, DISPATCH_ARCHIVE),
    ),
    Scenario(
        name="away",
        title="QoS 1 peer to peer, 100 pairs saturated, 30 % of the subscribers away for 2 s each",
        arguments=("p2p", "--pairs", "100", "--persistent", "--offline-share", "0.3"),
        full=_LONG,
        quick=_SHORT,
        variants=(MOSQUITTO, FSYNC, OS),
    ),
    Scenario(
        name="half",
        title="QoS 1 peer to peer, 100 pairs at half of what each variant takes saturated, persistent sessions",
        arguments=("p2p", "--pairs", "100", "--persistent", "--paced", "0.5"),
        full=_LONG,
        quick=_SHORT,
        variants=(MOSQUITTO, FSYNC, OS),
    ),
    Scenario(
        name="fanin",
        title="QoS 1 fan-in, 5,000 msg/s from 100 publishers to one subscriber (an APPLICATION under dispatch)",
        arguments=(
            "fanin",
            "--publishers",
            "100",
            "--rate",
            "5000",
            "--persistent",
            "--subscriber-id",
            APPLICATION_ID,
        ),
        full=("--duration", "20", "--warmup", "40"),  # a JVM that has just started compiles at first
        quick=("--duration", "5", "--warmup", "15"),
        variants=(MOSQUITTO, FSYNC, DISPATCH),
    ),
    Scenario(
        name="idle",
        title="Memory of idle connections",
        arguments=("idle",),
        full=("--connections", "5000"),
        quick=("--connections", "1000", "--hold", "2"),
        variants=(MOSQUITTO, FSYNC),
    ),
)


def chosen(
    scenarios: list[str], variants: list[str], *, pipeline: bool, rumqttd: bool = False
) -> list[Scenario]:
    """The scenarios and variants of these names (all, when none are named). Raises ValueError for an unknown one."""
    known_scenarios = {scenario.name for scenario in SCENARIOS}
    known_variants = {variant.name for scenario in SCENARIOS for variant in scenario.variants}
    if rumqttd:
        known_variants.add(RUMQTTD.name)
    for name, known in [(name, known_scenarios) for name in scenarios] + [
        (name, known_variants) for name in variants
    ]:
        if name not in known:
            raise ValueError(f"{name!r} is unknown; there are {', '.join(sorted(known))}")
    return [
        msgspec.structs.replace(
            scenario,
            variants=tuple(
                variant
                for variant in (*scenario.variants, *((RUMQTTD,) if rumqttd else ()))
                if (not variants or variant.name in variants) and (pipeline or not variant.has_pipeline)
            ),
        )
        for scenario in SCENARIOS
        if not scenarios or scenario.name in scenarios
    ]
