"""The rights that docs/stores.md asks operators to give the broker's user, for a user of a Kafka of the tests."""

from __future__ import annotations

import re
from pathlib import Path

from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from tests.support.kafka_server import KafkaServer

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
"""Settings of a server that asks who may do what; who comes by the way beside the gate may do everything."""
GIVEN_S = 30.0
_DOCS = Path(__file__).resolve().parents[2] / "docs" / "stores.md"
_ROW = re.compile(
    r"^\| (topic|group|cluster)(s that begin with)?(?: `([^`]+)`)? \| ([A-Z_, ]+) \|", re.MULTILINE
)
_CLUSTER = "kafka-cluster"


def documented_rights(user: str, prefix: str) -> list[AclBinding]:
    """One for each operation of each row of the table."""
    return [
        AclBinding(
            ResourceType.BROKER if kind == "cluster" else ResourceType[kind.upper()],
            name.replace("<prefix>", prefix) or _CLUSTER,
            ResourcePatternType.PREFIXED if begins else ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )
        for kind, begins, name, operations in _ROW.findall(_DOCS.read_text())
        for operation in operations.split(", ")
    ]


def give_documented_rights(
    server: KafkaServer, user: str, prefix: str, *, but: ResourceType | None = None
) -> None:
    """To the broker's user; `but` leaves those on one kind out."""
    rights = documented_rights(user, prefix)
    assert len(rights) > 20, "the table of rights has moved"
    for answer in server.admin.create_acls([one for one in rights if one.restype is not but]).values():
        answer.result(GIVEN_S)


def refusals(server: KafkaServer) -> list[str]:
    """What the server has refused for want of a right, as its log tells it."""
    lines = (server.folder / "output.txt").read_text(errors="replace").splitlines()
    return sorted({line.partition(" is Denied ")[2] for line in lines if " is Denied " in line})
