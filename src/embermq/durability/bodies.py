"""Bodies of application log entries: the entries hold offsets, the message log holds the records."""

from collections.abc import Callable

from embermq.formats.log_record import LogRecord, RecordError, decode_record, readable_topic, split_batch
from embermq.ports.message_log import LogBatch, MessageLog
from embermq.ports.parked_bodies import ParkedBodies

READ_RECORDS = 256
READ_BYTES = 1024 * 1024


class Bodies:
    """Reads records by growing offset, a few batches at a time; what the log has let go of may be parked."""

    def __init__(
        self,
        log: MessageLog,
        parked: ParkedBodies,
        generation: int,
    ) -> None:
        self._log = log
        self._parked = parked
        self._generation = generation
        self._frames: list[bytes] = []
        self._base = 0
        self._ahead: list[LogBatch] = []

    def get(
        self, offset: int, damaged: Callable[[str], None] | None = None
    ) -> tuple[LogRecord, bytes] | None:
        """The record at an offset and its encoded form; None when nobody has it any more, or it is damaged:
        `damaged` is told then."""
        if self._base <= offset < self._base + len(self._frames) or self._load(offset):
            frame: bytes | None = self._frames[offset - self._base]
        else:
            frame = self._parked.get(self._generation, offset)
        try:
            return None if frame is None else (decode_record(frame), frame)
        except RecordError as error:
            if damaged is not None:
                damaged(f"offset {offset} of the message log, topic {readable_topic(frame or b'')}: {error}")
            return None

    def _load(self, offset: int) -> bool:
        while self._ahead and self._ahead[0].base_offset + self._ahead[0].record_count <= offset:
            del self._ahead[0]
        if not self._ahead or self._ahead[0].base_offset > offset:
            self._ahead = self._log.read(offset, records_max=READ_RECORDS, bytes_max=READ_BYTES)
        if not self._ahead or not self._ahead[0].base_offset <= offset:
            self._frames, self._ahead = [], []
            return False
        batch = self._ahead.pop(0)
        self._frames = split_batch(batch.body, batch.record_count)
        self._base = batch.base_offset
        return offset < self._base + len(self._frames)
