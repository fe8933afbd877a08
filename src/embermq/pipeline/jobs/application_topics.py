"""Who knows which application logs there have to be: asked about one that is not there and that a record is for."""

import http.client
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct

from embermq.formats.application_logs import SHARED
from embermq.pipeline.control_socket import asked
from embermq.pipeline.errors import KafkaLogError
from embermq.pipeline.places import Places

if TYPE_CHECKING:  # Kafka's client is not there in every installation
    from embermq.pipeline.sources.kafka_positions import KafkaPositions

ANSWER_S = 20.0
_RESTORE = "/api/v1/application-logs/restore"
_KEPT = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "LogAppendTime",
}
"""Of a log that is made: nothing vanishes before somebody has read it."""


class SessionTopics(Protocol):
    """Answered by whoever knows the sessions. May raise KafkaLogError; then it is asked again."""

    def restore(self, topic: str) -> int | None:
        """Make the log again when a session still wants it, with all others that are missing, and return None.

        Otherwise the newest session generation there has been: what is stamped for that log and a generation up to
        it is rejected, since nobody will ever read it; a later one is of a new session, whose log is made for it.
        """


class _RestoredAnswer(Struct, frozen=True):
    generation: int | None


class BrokerSessions:
    """Asks the broker of this data directory, over its control socket."""

    def __init__(self, places: Places, timeout_s: float = ANSWER_S) -> None:
        self._socket = places.control
        self._timeout_s = timeout_s

    def restore(self, topic: str) -> int | None:
        refusal = f"{self._socket}: the broker does not restore {topic}"
        body = msgspec.json.encode({"topic": topic})
        try:
            status, told = asked(self._socket, "POST", _RESTORE, body, self._timeout_s)
        except (OSError, http.client.HTTPException) as error:
            raise KafkaLogError(f"{refusal}: {error}") from error
        if status != http.HTTPStatus.OK:
            raise KafkaLogError(f"{refusal}: {status} {told.decode(errors='replace')}")
        try:
            return msgspec.json.decode(told, type=_RestoredAnswer).generation
        except msgspec.DecodeError as error:
            raise KafkaLogError(f"{refusal}: {error}") from error


class LogsMadeHere:
    """Without the broker's data directory there is nobody to ask: what a record is for is made. A log that no session
    wants any more is in the operator's list of logs without a reader, and loses nothing."""

    def __init__(self, positions: "KafkaPositions") -> None:
        self._positions = positions

    def restore(self, topic: str) -> int | None:
        kafka = self._positions.kafka
        is_shared = topic.startswith(kafka.application_prefix + SHARED)
        settings = _KEPT | (
            {"max.message.bytes": str(kafka.record_bytes_max)} if kafka.record_bytes_max else {}
        )
        self._positions.ensure_topic(topic, kafka.shared_partitions if is_shared else 1, settings)
        return None
