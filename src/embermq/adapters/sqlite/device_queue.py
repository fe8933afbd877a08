"""Reading stored deliveries from broker.db."""

import struct
from collections.abc import Iterable

from embermq.adapters.sqlite.tick_tables import TickTables
from embermq.model.session_writes import QueueRow
from embermq.ports.device_queue import DeviceQueue, DeviceQueueHistory, Rows, Sizes

_COLUMNS = 'generation, seq, "offset", packet_id, state, flags, expires_ms, identifiers, record'


class SqliteDeviceQueue(DeviceQueue):
    """See the port."""

    def __init__(self, tables: TickTables) -> None:
        self._connection = tables.connection
        self._show = tables.show_rows

    def in_flight(self, generation: int, then: Rows) -> None:
        self._show(generation)
        rows = self._connection.execute(
            f"SELECT {_COLUMNS} FROM device_queue WHERE generation = ? AND state IN (1, 2) ORDER BY seq",
            (generation,),
        )
        then([_row(row) for row in rows])

    def page(
        self, generation: int, after_seq: int, limit: int, then: Rows, *, bytes_max: int | None = None
    ) -> None:
        self._show(generation, after_seq)
        rows = self._connection.execute(
            f"SELECT {_COLUMNS} FROM device_queue WHERE generation = ? AND seq > ? AND state = 0 ORDER BY seq LIMIT ?",
            (generation, after_seq, limit),
        )
        if bytes_max is None:
            then([_row(row) for row in rows])
            return
        found: list[QueueRow] = []
        left = bytes_max
        for row in rows:
            found.append(_row(row))
            left -= len(found[-1].record)
            if left <= 0:
                rows.close()
                break
        then(found)

    def oldest(self, generation: int, after_seq: int, limit: int, then: Sizes) -> None:
        self._show(generation, after_seq)
        rows = self._connection.execute(
            "SELECT seq, length(record) FROM device_queue"
            " WHERE generation = ? AND seq > ? AND state = 0 ORDER BY seq LIMIT ?",
            (generation, after_seq, limit),
        )
        then(rows.fetchall())


class SqliteQueueHistory(DeviceQueueHistory):
    """See the port."""

    def __init__(self, tables: TickTables) -> None:
        self._tables = tables
        self._connection = tables.connection

    def queued_seq_after(self, generation: int, offset: int) -> int | None:
        self._tables.write()
        row = self._connection.execute(
            'SELECT MIN(seq) FROM device_queue WHERE generation = ? AND state = 0 AND "offset" > ?',
            (generation, offset),
        ).fetchone()
        return None if row[0] is None else int(row[0])

    def queued(self, generation: int) -> list[tuple[int, int, int]]:
        self._tables.write()
        return self._connection.execute(
            'SELECT seq, "offset", length(record) FROM device_queue WHERE generation = ? AND state = 0',
            (generation,),
        ).fetchall()

    def shared_sent(self, generation: int) -> set[tuple[int, int]]:
        self._tables.write()
        rows = self._connection.execute(
            'SELECT flags >> 3, "offset" FROM device_queue'
            " WHERE generation = ? AND state IN (1, 2) AND flags >> 3 & 1",
            (generation,),
        )
        return set(rows)

    def known_offsets(self, generation: int, from_offset: int) -> dict[int, set[int]]:
        self._tables.write()
        rows = self._connection.execute(
            'SELECT flags >> 3, "offset" FROM device_queue WHERE generation = ? AND "offset" >= ?',
            (generation, from_offset),
        )
        return _by_mark(rows)

    def known_by_shares(self, from_offset: int) -> dict[int, set[int]]:
        self._tables.write()
        rows = self._connection.execute(
            'SELECT flags >> 3, "offset" FROM device_queue WHERE flags >> 3 AND "offset" >= ?', (from_offset,)
        )
        return _by_mark(rows)


def _by_mark(rows: Iterable[tuple[int, int]]) -> dict[int, set[int]]:
    known: dict[int, set[int]] = {}
    for mark, offset in rows:
        known.setdefault(mark, set()).add(offset)
    return known


def _row(row: tuple[int, int, int, int, int, int, int, bytes, bytes]) -> QueueRow:
    generation, seq, offset, packet_id, state, flags, expires_ms, packed, record = row
    identifiers = struct.unpack(f">{len(packed) // 4}I", packed) if packed else ()
    return QueueRow(generation, seq, offset, packet_id, state, flags, expires_ms, identifiers, record)
