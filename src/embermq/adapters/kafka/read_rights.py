"""Whether what Kafka did not let us read may be read now: a log in which nothing comes would not show it."""

from __future__ import annotations

import time
from collections.abc import Collection
from concurrent.futures import Future

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, TopicDescription  # type: ignore[attr-defined]

from embermq.adapters.kafka.address import KafkaAddress
from embermq.adapters.kafka.client import client_options
from embermq.adapters.kafka.settings import KafkaSettings

ASK_AGAIN_S = 5.0


class ReadRights:
    """Kafka is asked every `ASK_AGAIN_S`, and never waited for."""

    def __init__(self, address: KafkaAddress, settings: KafkaSettings) -> None:
        self._options = client_options(address)
        self._timeout_s = settings.request_timeout_s
        self._admin: AdminClient | None = None
        self._asked: dict[str, Future[TopicDescription]] = {}
        self._due_s = 0.0

    def given(self, logs: Collection[str]) -> set[str]:
        """Of these, those that Kafka has lately said may be read."""
        answered = {log: answer for log, answer in self._asked.items() if answer.done()}
        for log in answered:
            del self._asked[log]
        found = {log for log, answer in answered.items() if log in logs and _may_read(answer)}
        left = [log for log in logs if log not in found]
        if left and not self._asked and time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + ASK_AGAIN_S
            self._ask(left)
        return found

    def _ask(self, logs: list[str]) -> None:
        if self._admin is None:  # hardly any broker needs it
            self._admin = AdminClient(self._options)
        self._asked = self._admin.describe_topics(
            TopicCollection(logs), include_authorized_operations=True, request_timeout=self._timeout_s
        )


def _may_read(answer: Future[TopicDescription]) -> bool:
    try:
        return AclOperation.READ in (answer.result().authorized_operations or ())
    except KafkaException:
        return False
