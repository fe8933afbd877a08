"""Who knows which application logs there have to be: asked about one that is not there and that a record is for, and
about those that may have come and gone unseen."""

import http.client
from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec
from msgspec import Struct

from embermq.formats.application_logs import SHARED
from embermq.pipeline.control_socket import asked
from embermq.pipeline.errors import KafkaLogError
from embermq.pipeline.places import Places

if TYPE_CHECKING:  # Kafka's client is not there in every installation
    from embermq.pipeline.sources.kafka_positions import KafkaPositions

ANSWER_S = 20.0
LATE_S = 2.0
"""For what is asked at every look, and need not be known at each."""
_RESTORE = "/api/v1/application-logs/restore"
_RESTORE_MISSING = "/api/v1/application-logs/restore-missing"
_LATE = "/api/v1/application-logs/late"

_Answer = TypeVar("_Answer")
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
        """Make the log again when a session still wants it, and return None.

        Otherwise the newest session generation there has been: what is stamped for that log and a generation up to
        it is rejected, since nobody will ever read it; a later one is of a new session, whose log is made for it.
        """

    def restore_missing(self) -> Collection[str]:
        """Make every log again that is wanted and not there, all together; which they were."""

    def lately(self) -> Collection[str]:
        """Logs that were made or found since the question before, and that have not been deleted with their session.
        The first question gets none."""


class _RestoredAnswer(Struct, frozen=True):
    generation: int | None


class _RestoredLogsAnswer(Struct, frozen=True):
    logs: tuple[str, ...]


class _Late(Struct, frozen=True):
    number: int
    logs: tuple[str, ...]


class BrokerSessions:
    """Asks the broker of this data directory, over its control socket."""

    def __init__(self, places: Places, timeout_s: float = ANSWER_S) -> None:
        self._socket = places.control
        self._timeout_s = timeout_s
        self._since: int | None = None

    def restore(self, topic: str) -> int | None:
        body = msgspec.json.encode({"topic": topic})
        refusal = f"does not restore {topic}"
        found = self._asked("POST", _RESTORE, refusal, _RestoredAnswer, body, timeout_s=self._timeout_s)
        return found.generation

    def restore_missing(self) -> Collection[str]:
        refusal = "does not restore what is missing"
        found = self._asked(
            "POST", _RESTORE_MISSING, refusal, _RestoredLogsAnswer, b"{}", timeout_s=self._timeout_s
        )
        return found.logs

    def lately(self) -> Collection[str]:
        since = self._since
        path, refusal = f"{_LATE}?since={since or 0}", "does not say which logs are new"
        found = self._asked("GET", path, refusal, _Late, timeout_s=min(LATE_S, self._timeout_s))
        self._since = found.number
        return () if since is None else found.logs

    def _asked(
        self,
        method: str,
        path: str,
        refusal: str,
        kind: type[_Answer],
        body: bytes | None = None,
        *,
        timeout_s: float,
    ) -> _Answer:
        """`refusal` is what is told of an answer that is none."""
        try:
            status, told = asked(self._socket, method, path, body, timeout_s)
        except (OSError, http.client.HTTPException) as error:
            raise KafkaLogError(f"{self._socket}: the broker {refusal}: {error}") from error
        if status != http.HTTPStatus.OK:
            raise KafkaLogError(
                f"{self._socket}: the broker {refusal}: {status} {told.decode(errors='replace')}"
            )
        try:
            return msgspec.json.decode(told, type=kind)
        except msgspec.DecodeError as error:
            raise KafkaLogError(f"{self._socket}: the broker {refusal}: {error}") from error


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

    def restore_missing(self) -> Collection[str]:
        """Which others are wanted is not known here."""
        return ()

    def lately(self) -> Collection[str]:
        return ()
