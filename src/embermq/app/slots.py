"""The slots of a cluster: each has stores of its own, which the node that has it writes alone.

A slot's message log is a topic of its own, and so is how the keys of its session data begin: whatever is true of one
broker and its stores (one writer, fences, positions, floors, recovery) is true of each slot.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from embermq.adapters.redis.address import parse_address, with_slot
from embermq.app.errors import OptionError, UserError
from embermq.app.places_noted import noted_places
from embermq.app.settings import SQLITE
from embermq.app.store_addresses import cluster_name
from embermq.edge.settings import Address
from embermq.edge.settings import parse_address as parse_listener
from embermq.pipeline.settings import is_s3

if TYPE_CHECKING:
    from embermq.app.config import Settings
    from embermq.cluster.settings import ClusterSettings
    from embermq.durability.retention import QueryPolicy
    from embermq.pipeline.rules.settings import RuleSettings


def slot_settings(settings: Settings, slot: int) -> Settings:
    """Those of the node that has this slot. The first one's stores are those of a cluster with one."""
    if not slot:
        return settings
    return replace(
        settings,
        kafka=replace(settings.kafka, prefix=slot_prefix(settings.kafka.prefix, slot)),
        stores=replace(settings.stores, session=with_slot(settings.stores.session, slot)),
    )


def cluster_of(settings: Settings) -> str:
    """What the data belongs to: a cluster of another name, or with other slots, would not find it where it looks. ""
    for a broker that is in none."""
    name, slots = cluster_name(settings.cluster.etcd), settings.cluster.slots
    return f"{name} with {slots} slots" if slots > 1 else name


def reader_name(slot: int) -> str:
    """How a slot's node is called among those that read the logs of others."""
    return f"slot-{slot}"


def reader_policies(settings: Settings) -> dict[str, QueryPolicy]:
    """What becomes of a slot whose node is too far behind in the logs of others: these refuse. What they have
    acknowledged is not dropped before it is there, whatever the settings say of other readers."""
    return {reader_name(slot): "refuse" for slot in range(settings.cluster.slots)}


def slot_prefix(prefix: str, slot: int) -> str:
    """How the Kafka topics of a slot begin."""
    return f"{prefix}.slot-{slot}" if slot else prefix


def node_address(text: str, setting: str) -> Address:
    """HOST:PORT as an address. Raises ValueError, naming the setting, for anything else, port 0 included."""
    try:
        address = parse_listener(text)
    except ValueError as error:
        raise ValueError(f"{setting}: {error}") from None
    if not isinstance(address, Address) or not address.port:
        raise ValueError(f"{setting}: {text!r} is not HOST:PORT, by which other nodes reach this one")
    return address


def check_slots(settings: Settings) -> None:
    """Raises ValueError, with the setting first, for what several nodes that serve at once cannot do yet."""
    cluster = settings.cluster
    if cluster.slots == 1:
        for name in ("cert", "ca", "plaintext"):
            if getattr(cluster, name):
                raise ValueError(
                    f"cluster.{name}: has no effect with cluster.slots of 1: one node serves, and speaks to no other"
                )
        return
    if not cluster.listen:
        raise ValueError(
            f"cluster.listen: needed with cluster.slots of {cluster.slots}: HOST:PORT for other nodes"
        )
    listen = node_address(cluster.listen, "cluster.listen")
    if cluster.advertise:
        node_address(cluster.advertise, "cluster.advertise")
    _check_encryption(cluster, listen)
    if parse_address(settings.stores.session).slot:
        raise ValueError(
            "stores.session: leave out the option slot: each node has that of its slot by itself"
        )
    for name, rule in settings.rules.items():
        _check_rule(name, rule, settings)
    if settings.pipeline.enabled:
        _check_queries(settings)


def _check_encryption(cluster: ClusterSettings, listen: Address) -> None:
    for given, missing in (("cert", "ca"), ("ca", "cert")):
        if getattr(cluster, given) and not getattr(cluster, missing):
            raise ValueError(f"cluster.{missing}: needed with cluster.{given}")
    if cluster.cert and cluster.plaintext:
        raise ValueError("cluster.plaintext: has no effect, with cluster.cert nodes speak TLS")
    if not (listen.is_loopback or cluster.cert or cluster.plaintext):
        raise ValueError(
            f"cluster.listen: {listen} is not on loopback, and what nodes say to one another is not encrypted: set "
            "cluster.cert and cluster.ca, or, in a network that sees to that, cluster.plaintext"
        )


def _check_queries(settings: Settings) -> None:
    of_tables = [query for query in ("lake", "traffic") if query in settings.pipeline.queries]
    if of_tables and not is_s3(settings.pipeline):
        raise ValueError(
            f"pipeline.lake_dir: with cluster.slots of {settings.cluster.slots}, it has to be in object storage "
            f"(s3a://BUCKET/PATH) for {' and '.join(of_tables)}: the nodes of all slots write one table, and in a "
            "folder two commits at once may become one"
        )
    if "archive" in settings.pipeline.queries and settings.stores.static == SQLITE:
        raise ValueError(
            f"pipeline.queries: with cluster.slots of {settings.cluster.slots}, archive needs stores.static on an SQL "
            "server: messages.db is of one node, and a slot goes from one to another"
        )


def _check_rule(name: str, rule: RuleSettings, settings: Settings) -> None:
    """Each node runs all rules over the log of its slot: so the rules of a cluster see each message once."""
    slots = settings.cluster.slots
    if rule.every:
        raise ValueError(
            f"rules.{name}.every: with cluster.slots of {slots}, rules over windows of time do not work: the messages "
            "of a window are in the logs of all slots, and a rule reads one; have a rule put rows into the lake (to = "
            '"lake"), and ask that table for windows'
        )
    if rule.to == "lake" and not is_s3(settings.pipeline):
        raise ValueError(
            f'rules.{name}.to = "lake": with cluster.slots of {slots}, it needs pipeline.lake_dir in object storage '
            "(s3a://BUCKET/PATH): the nodes of all slots write its table"
        )


def noted_slot(settings: Settings) -> Settings:
    """Those of the slot that the node of this data directory had last, for commands that ask its stores. Raises
    UserError when it had none."""
    if settings.cluster.slots == 1:
        return settings
    slot = noted_places(Path(settings.data_dir)).slot
    if slot is None:
        raise UserError(
            f"{settings.data_dir}: the node of this data directory has not served yet, so it has no slot of the "
            "cluster; name that of one which has with --data-dir"
        )
    return slot_settings(settings, slot)


def asked_slots(settings: Settings, slot: int | None) -> tuple[Settings, ...]:
    """Those of the slot that an option `--slot` names; without one those of each slot, in their order. Raises
    OptionError."""
    if slot is None:
        return tuple(slot_settings(settings, each) for each in range(settings.cluster.slots))
    return (named_slot(settings, slot),)


def named_slot(settings: Settings, slot: int | None) -> Settings:
    """Those of the slot that an option `--slot` names, by a command that needs one. Raises OptionError."""
    slots = settings.cluster.slots
    if slot is None and slots == 1:
        return settings
    if slot is None or slot >= slots:
        given = "" if slot is None else f"{slot} is none of them: "
        raise OptionError(
            f"--slot: {given}the cluster has slots 0 to {slots - 1}, each with the messages that its own clients have "
            "published"
        )
    return slot_settings(settings, slot)


def check_no_slots(settings: Settings) -> None:
    """Raises UserError for a cluster with several slots: each node starts the pipeline of its own."""
    if settings.cluster.slots > 1:
        raise UserError(
            f"cluster.slots is {settings.cluster.slots}: each node runs the pipeline of its slot by itself, with "
            "pipeline.enabled = true, and keeps what it writes in order; none of that is done apart from it"
        )
