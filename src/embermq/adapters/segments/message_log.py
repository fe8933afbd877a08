"""Reading and trimming the embedded message log."""

from embermq.adapters.segments.tick_store import SegmentTickStore
from embermq.adapters.segments.writer import to_store_error
from embermq.formats.segment_reader import SegmentReader
from embermq.formats.segments import SegmentError
from embermq.ports.errors import StoreError
from embermq.ports.message_log import LogBatch, LogStatistics, MessageLog


class SegmentMessageLog(MessageLog):
    """Reads with files of its own, so each thread has one; trimming is left to the next ticks of the store that
    appends."""

    def __init__(self, store: SegmentTickStore, *, own_thread: bool = False) -> None:
        """`own_thread`: it is used by another thread than the store."""
        self._reader = SegmentReader(store.folder)
        self._store = store
        self._own_thread = own_thread

    def read(self, from_offset: int, *, records_max: int, bytes_max: int) -> list[LogBatch]:
        self._flush()
        batches: list[LogBatch] = []
        records = size = 0
        try:
            for frame in self._reader.frames(from_offset):
                body = self._reader.body(frame)
                batches.append(LogBatch(frame.head.base_offset, frame.head.record_count, body))
                self._reader.remember(frame)
                records += frame.head.record_count
                size += len(body)
                if records >= records_max or size >= bytes_max:
                    break
        except (OSError, SegmentError) as error:
            raise _translated(error) from error
        return batches

    def statistics(self) -> LogStatistics:
        self._flush()
        try:
            extent = self._reader.extent()
        except (OSError, SegmentError) as error:
            raise _translated(error) from error
        if extent is None:
            return LogStatistics(0, 0, 0)
        return LogStatistics(extent.start_offset, extent.end_offset, extent.body_bytes)

    def offset_at(self, time_ms: int) -> int:
        self._flush()
        try:
            return self._reader.offset_at(time_ms)
        except (OSError, SegmentError) as error:
            raise _translated(error) from error

    def trim(self, below_offset: int) -> None:
        self._store.trim_below = max(self._store.trim_below, below_offset)

    def _flush(self) -> None:
        if not self._own_thread:
            self._store.flush()

    def close(self) -> None:
        self._reader.close()


def _translated(error: OSError | SegmentError) -> StoreError:
    doing = "cannot read the message log"
    return to_store_error(error, doing) if isinstance(error, OSError) else StoreError(f"{doing}: {error}")
