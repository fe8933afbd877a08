"""What nobody foresaw, on the threads that speak to Kafka: told with its trace and counted, while the work goes on."""

from __future__ import annotations

from threading import Lock

from embermq.adapters.kafka.client import LOG


class Failures:
    """Of all threads of one broker."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._told = ""
        self._count = 0

    @property
    def count(self) -> int:
        """How many there have been."""
        return self._count

    def note(self, doing: str, error: Exception) -> str:
        """One more; returns it as a sentence. A trace that is the last one's again is not logged again."""
        text = f"{doing}: unexpected {error!r}"
        with self._lock:
            self._count += 1
            is_new, self._told = text != self._told, text
        if is_new:
            LOG.error("%s; the work goes on", text, exc_info=error)
        return text
