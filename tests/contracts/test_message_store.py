"""What every message store promises: SQLite, PostgreSQL, MariaDB."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.contracts.message_stores import (
    KINDS,
    NOON_MS,
    SERVERS,
    SINK_S,
    Kind,
    MessageStores,
    message,
    poison,
    table,
)
from tests.support.waiting import wait_until

from embermq.adapters.sqlite.log_readers import SqliteLogReaders
from embermq.formats.message_table import topic_hash
from embermq.model.message import Message
from embermq.mqtt.wire.properties import Properties
from embermq.pipeline.errors import MessageServerError
from embermq.pipeline.schema import MISSING
from embermq.pipeline.sinks.message_file import MessageStoreSink
from embermq.ports.errors import StoreUnavailable
from embermq.ports.message_store import RANGE_BYTES, MessageStore

BEFORE_ALL = -1
MANY = 100_000
LONGEST_TOPIC = 65_535
PACKET_BYTES = 1024 * 1024
REPLAYS = [(0, 10), (0, 10), (5, 17), (3, 30), (29, 40)]
"""Ranges as a query might repeat them after losing its checkpoint."""


def opened(kind: Kind, folder: Path, request: pytest.FixtureRequest) -> Iterator[MessageStores]:
    found = MessageStores(kind, folder, None if kind == "sqlite" else request.getfixturevalue(kind))
    yield found
    found.close()


@pytest.fixture(params=KINDS)
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MessageStores]:
    yield from opened(request.param, tmp_path, request)


@pytest.fixture(params=SERVERS)
def on_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MessageStores]:
    yield from opened(request.param, tmp_path, request)


@pytest.fixture
def sink(stores: MessageStores) -> Iterator[MessageStoreSink]:
    with stores.sink() as sink:
        yield sink


@pytest.fixture
def store(stores: MessageStores) -> Iterator[MessageStore]:
    with stores.reader() as reader:
        yield reader


def offsets(store: MessageStore, topic: str = "t") -> list[int]:
    return [found.offset for found in store.range(topic, BEFORE_ALL, MANY)]


def confirmed(stores: MessageStores) -> int | None:
    """What the broker goes by when it lets go of the log."""
    found = {
        reader.name: reader.next_offset for reader in SqliteLogReaders(stores.places.data_dir).positions()
    }
    return found.get("archive")


@pytest.mark.promise("pipeline-11", "repositories-9")
def test_a_message_comes_back_with_everything(sink: MessageStoreSink, store: MessageStore) -> None:
    properties = (
        '{"payload_format_indicator": 1, "message_expiry_interval": 4294967295, "content_type": "text",'
        ' "correlation_data": "AAH/", "response_topic": "r/\U0001f525",'
        ' "user_properties": [{"name": "k", "value": "v\'\\\\"}, {"name": "k", "value": ""}]}'
    )
    full = message(
        5,
        topic="grüße/\U0001f525/'\"\\%s",
        accepted_ms=2**41,
        qos=2,
        retain=1,
        publisher="pump\\'; --\x01",
        version=5,
        expires_ms=2**41 + 1,
        properties=properties,
        payload=bytes(range(256)) * 2,
    )
    sink.write_table(table([full, message(6, payload=b"")]))
    found = store.get("grüße/\U0001f525/'\"\\%s", 5)
    assert found is not None
    assert found.message == Message(
        "grüße/\U0001f525/'\"\\%s",
        bytes(range(256)) * 2,
        2,
        True,
        "pump\\'; --\x01",
        5,
        2**41,
        2**41 + 1,
        Properties(
            payload_format_indicator=1,
            message_expiry_interval=4_294_967_295,
            content_type="text",
            response_topic="r/\U0001f525",
            correlation_data=b"\x00\x01\xff",
            user_properties=(("k", "v'\\"), ("k", "")),
        ),
    )
    plain = store.get("t", 6)
    assert plain is not None and plain.message == Message("t", b"", 1, False, "pump", 4, NOON_MS)
    assert store.get("t", 5) is None and store.get("t", 7) is None


@pytest.mark.promise("pipeline-11")
def test_a_range_is_of_one_topic_behind_an_offset_in_order(
    sink: MessageStoreSink, store: MessageStore
) -> None:
    assert store.range("t", BEFORE_ALL, 10) == []
    sink.write_table(table([message(n, topic="t" if n % 2 else "other") for n in range(20)]))
    assert offsets(store) == list(range(1, 20, 2))
    assert [found.offset for found in store.range("t", 5, 3)] == [7, 9, 11]
    assert [found.offset for found in store.range("t", 19, 3)] == []


@pytest.mark.promise("pipeline-7")
def test_a_range_is_bounded_by_bytes(sink: MessageStoreSink, store: MessageStore) -> None:
    """Behind the message that reaches them; who asks again gets the others."""
    sizes = [RANGE_BYTES // 2, RANGE_BYTES, 10, RANGE_BYTES // 3, 10]
    properties = '{"user_properties": [{"name": "k", "value": "%s"}]}' % ("v" * RANGE_BYTES)
    for offset, size in enumerate(sizes):  # one after the other: servers take no larger packet
        sink.write_table(table([message(offset, payload=b"x" * size)]))
    sink.write_table(table([message(len(sizes), properties=properties), message(len(sizes) + 1)]))
    found, after = [], BEFORE_ALL
    while page := [one.offset for one in store.range("t", after, MANY)]:
        found.append(page)
        after = page[-1]
    assert found == [[0, 1], [2, 3, 4, 5], [6]]


@pytest.mark.promise("pipeline-11")
def test_topics_are_told_apart_by_every_character(sink: MessageStoreSink, store: MessageStore) -> None:
    longest = "x" * (LONGEST_TOPIC - 1)
    topics = [
        *("A", "a", "a ", " a", "á", "a\u0301", "ａ", "a/", "/a", "ss", "ß", "%", "_"),
        *(longest + "1", longest + "2", "\U0001f525" * (LONGEST_TOPIC // 4)),
    ]
    sink.write_table(table([message(n, topic=topic) for n, topic in enumerate(topics)]))
    for n, topic in enumerate(topics):
        assert offsets(store, topic) == [n], topic[:20]
        found = store.get(topic, n)
        assert found is not None and found.message.topic == topic


@pytest.mark.promise("pipeline-11", "repositories-2")
def test_offsets_have_64_bits(sink: MessageStoreSink, store: MessageStore, stores: MessageStores) -> None:
    large = [2**31 - 1, 2**31, 2**31 + 1, 2**32 + 1, 2**45 + 1, 2**46 - 2]
    sink.write_table(table([message(offset) for offset in large]))
    assert offsets(store) == large
    assert [found.offset for found in store.range("t", 2**31, 2)] == [2**31 + 1, 2**32 + 1]
    assert confirmed(stores) == 2**46 - 1


@pytest.mark.promise("pipeline-11")
def test_a_message_may_be_as_large_as_a_packet(sink: MessageStoreSink, store: MessageStore) -> None:
    payload = bytes(range(256)) * (PACKET_BYTES // 256)
    pairs = [{"name": "n" * 1_000, "value": "v"}] * 900
    properties = msgspec.json.encode({"user_properties": pairs}).decode()
    sink.write_table(table([message(0), message(1, payload=payload, properties=properties), message(2)]))
    found = store.get("t", 1)
    assert found is not None and found.message.payload == payload
    assert found.message.properties is not None and len(found.message.properties.user_properties) == 900
    assert offsets(store) == [0, 1, 2]


@pytest.mark.promise("pipeline-2", "pipeline-11", "repositories-9")
def test_repeated_with_other_boundaries(
    sink: MessageStoreSink, store: MessageStore, stores: MessageStores
) -> None:
    rows = [poison(n) if 22 <= n < 25 else message(n) for n in range(40)]
    rows[28:30] = [poison(28, span=2) | {"error": f"{MISSING} 28 to 29: removed"}]
    good = [n for n in range(40) if n not in (22, 23, 24, 28, 29)]
    for start, end in REPLAYS:
        sink.write_table(table([row for row in rows if start <= int(str(row["offset"])) < end]))
        assert confirmed(stores) == end
    assert offsets(store) == good
    counts = sink.file.counts()
    assert bool(counts.pop("bytes", 0)) == (not stores.url), "a server has no column for them"
    assert counts == {"records": 40, "entries": 35, "rejected": 3, "missing": 2}
    assert sink.write_table(table(rows)) == 0


@pytest.mark.promise("pipeline-2")
def test_rows_that_are_there_stay_as_they_are(
    sink: MessageStoreSink, store: MessageStore, stores: MessageStores
) -> None:
    """Also when the position was lost: by a person, or with a copy of the database."""
    sink.write_table(table([message(n) for n in range(10)]))
    if stores.url:
        stores.rows("UPDATE embermq_message_progress SET next_offset = 3")
    else:
        sink.file.copy(3, {})
    with stores.sink() as again:
        assert again.file.position() == 3
        again.write_table(table([message(n, payload=b"new") for n in range(3, 12)]))
    payloads = [found.message.payload for found in store.range("t", BEFORE_ALL, MANY)]
    assert payloads == [*(b"%d" % n for n in range(10)), b"new", b"new"]


@pytest.mark.promise("pipeline-2")
def test_a_batch_is_stored_whole_or_not_at_all(
    sink: MessageStoreSink, store: MessageStore, stores: MessageStores
) -> None:
    sink.write_table(table([message(n) for n in range(3)]))
    bad = table([*(message(n) for n in range(3, 2_000)), message(2_000, publisher=None)])
    with pytest.raises(Exception, match=r"(?i)null"):
        sink.write_table(bad)
    assert offsets(store) == [0, 1, 2]
    assert confirmed(stores) == 3
    sink.write_table(table([message(n) for n in range(3, 2_001)]))
    assert offsets(store) == list(range(2_001))


@pytest.mark.promise("pipeline-5")
def test_a_new_store_says_where_it_begins(stores: MessageStores) -> None:
    with stores.sink() as sink:
        assert sink.file.position() is None
        sink.begin_at(7)
        sink.begin_at(9)
        assert sink.file.position() == 7 == confirmed(stores)
    with stores.sink() as again:
        assert again.file.position() == 7


WAITING = {
    "postgres": "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
    "mariadb": "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
}
"""How many transactions wait for another one."""


@pytest.mark.promise("pipeline-2")
def test_two_drivers_at_once_store_nothing_twice(
    on_server: MessageStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older driver that was thought dead may still be writing."""
    rows = table([message(n) for n in range(50)])
    covered: list[int] = []
    with on_server.sink() as one, on_server.sink() as two:
        one.begin_at(0)
        other = threading.Thread(target=lambda: covered.append(two.write_table(rows)))
        put = one._server.put  # type: ignore[attr-defined]

        def meets_the_other(cursor: object, messages: object) -> None:
            put(cursor, messages)
            other.start()
            wait_until(lambda: on_server.rows(WAITING[on_server.kind]) == [(1,)], 30, "the other one waits")

        monkeypatch.setattr(one._server, "put", meets_the_other)  # type: ignore[attr-defined]
        assert one.write_table(rows) == 50
        other.join()
    assert covered == [0]
    with on_server.reader() as store:
        assert offsets(store) == list(range(50))
    assert on_server.rows("SELECT next_offset, entries FROM embermq_message_progress") == [(50, 50)]


@pytest.mark.promise("pipeline-11", "pipeline-7")
def test_the_pipeline_prunes_from_the_oldest_on_a_bounded_number_at_a_time(
    sink: MessageStoreSink, store: MessageStore
) -> None:
    assert sink.prune(NOON_MS, 3) == 0
    sink.write_table(table([message(n, accepted_ms=NOON_MS + n) for n in range(10)]))
    assert [sink.prune(NOON_MS + 5, 3) for _ in range(3)] == [3, 2, 0]
    assert offsets(store) == [5, 6, 7, 8, 9]
    assert sink.prune(NOON_MS + 100, MANY) == 5
    assert sink.prune(NOON_MS + 100, MANY) == 0


@pytest.mark.promise("pipeline-11")
def test_a_person_prunes_what_is_older_wherever_it_is(sink: MessageStoreSink, store: MessageStore) -> None:
    assert store.count_older(NOON_MS) == 0 == store.prune(NOON_MS, 10)
    old = {1, 2, 5, 8, 9}
    sink.write_table(table([message(n, accepted_ms=NOON_MS - 1 if n in old else NOON_MS) for n in range(10)]))
    assert store.count_older(NOON_MS) == 5
    assert offsets(store) == list(range(10)), "counting changes nothing"
    assert [store.prune(NOON_MS, 2) for _ in range(3)] == [2, 2, 1]
    assert store.count_older(NOON_MS) == 0
    assert offsets(store) == [0, 3, 4, 6, 7]
    sink.write_table(table([message(10)]))
    assert offsets(store) == [0, 3, 4, 6, 7, 10]


@pytest.mark.promise("pipeline-2", "repositories-9")
def test_brokers_that_share_a_database_have_their_own_messages(
    on_server: MessageStores, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = MessageStores(on_server.kind, tmp_path / "other", on_server.server, url=on_server.url)
    with on_server.sink() as one, other.sink() as two:
        one.write_table(table([message(n, accepted_ms=NOON_MS + n) for n in range(5)]))
        assert two.file.position() is None
        two.write_table(table([message(n, payload=b"other", accepted_ms=NOON_MS + n) for n in range(3, 9)]))
        one.write_table(table([message(n, accepted_ms=NOON_MS + n) for n in range(5, 7)]))
        assert one.prune(NOON_MS + 2, 10) == 2
    assert confirmed(on_server) == 7 and confirmed(other) == 9
    with on_server.reader() as store, other.reader() as others:
        assert offsets(store) == [2, 3, 4, 5, 6] and offsets(others) == [3, 4, 5, 6, 7, 8]
        assert {found.message.payload for found in others.range("t", BEFORE_ALL, MANY)} == {b"other"}
        three = store.get("t", 3)
        assert three is not None and three.message.payload == b"3" and store.get("t", 8) is None
        assert others.count_older(NOON_MS + 6) == 3
        assert others.prune(NOON_MS + 6, 10) == 3
        assert offsets(store) == [2, 3, 4, 5, 6]


@pytest.mark.promise("pipeline-5")
def test_a_position_is_reported_when_the_server_has_it_and_not_before(
    on_server: MessageStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    with on_server.sink() as sink:
        sink.write_table(table([message(n) for n in range(3)]))
        seen: list[int | None] = []
        put = sink._server.put  # type: ignore[attr-defined]

        def looks(cursor: object, rows: object) -> None:
            put(cursor, rows)
            seen.append(confirmed(on_server))

        monkeypatch.setattr(sink._server, "put", looks)  # type: ignore[attr-defined]
        sink.write_table(table([message(n) for n in range(3, 6)]))
        assert seen == [3] and confirmed(on_server) == 6

        def dies(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(sink.file, "copy", dies)
        with pytest.raises(KeyboardInterrupt):
            sink.write_table(table([message(n) for n in range(6, 9)]))
        assert confirmed(on_server) == 6, "behind, never ahead"
    with on_server.sink() as again:
        assert again.file.position() == 9 == confirmed(on_server)
        assert again.file.counts() == {"records": 9, "entries": 9}


@pytest.mark.promise("pipeline-5")
def test_a_server_that_was_put_back_is_believed(on_server: MessageStores) -> None:
    with on_server.sink() as sink:
        sink.write_table(table([message(n) for n in range(9)]))
    on_server.rows("UPDATE embermq_message_progress SET next_offset = 5, records = 5, entries = 5")
    with on_server.sink() as sink:
        assert sink.file.position() == 5 == confirmed(on_server)
    on_server.rows("DELETE FROM embermq_message_progress")
    with on_server.sink() as sink:
        assert sink.file.position() is None and confirmed(on_server) is None


@pytest.mark.promise("pipeline-5", "pipeline-16")
def test_a_server_that_is_away_is_named_without_its_password(on_server: MessageStores) -> None:
    server = on_server.server
    assert server is not None
    with on_server.sink() as sink, on_server.reader() as store:
        sink.write_table(table([message(0)]))
        assert offsets(store) == [0]
        server.kill()
        told: list[str] = []
        for _ in range(2):
            with pytest.raises(MessageServerError) as writing:
                sink.write_table(table([message(0), message(1)]))
            with pytest.raises(StoreUnavailable) as reading:
                offsets(store)
            told += [str(writing.value), str(reading.value)]
        assert all(f"@127.0.0.1:{server.port}/" in text for text in told), told
        told += traceback.format_exception(writing.value) + traceback.format_exception(reading.value)
        assert not any(server.password in text or "%2F" in text for text in told)
        assert confirmed(on_server) == 1, "still known"
        server.start()
        assert sink.write_table(table([message(0), message(1)])) == 1
        wait_until(lambda: answers(store), what="that the server is away is believed for a moment")
        assert offsets(store) == [0, 1]


def answers(store: MessageStore) -> bool:
    try:
        offsets(store)
    except StoreUnavailable:
        return False
    return True


@pytest.mark.promise("pipeline-5")
def test_a_server_that_stands_still_is_waited_for_so_long_and_no_longer(on_server: MessageStores) -> None:
    server = on_server.server
    assert server is not None
    with on_server.sink() as sink:
        sink.write_table(table([message(0)]))
        server.pause()
        began_s = time.monotonic()
        with pytest.raises(MessageServerError, match=f"@127.0.0.1:{server.port}/"):
            sink.write_table(table([message(1)]))
        assert time.monotonic() - began_s < 10 * SINK_S
        server.resume()
        assert sink.write_table(table([message(1)])) == 1
    with on_server.reader() as store:
        assert offsets(store) == [0, 1]


def test_a_batch_without_a_message_moves_the_position(stores: MessageStores, store: MessageStore) -> None:
    with stores.sink() as sink:
        assert sink.write_table(table([poison(0, 4)])) == 4
        assert sink.file.position() == 4
        assert sink.write_table(table([message(4)])) == 1
        assert sink.write_table(table([poison(5), poison(6)])) == 2
        assert sink.file.position() == 7
    assert offsets(store) == [4]


@pytest.mark.promise("pipeline-4")
def test_a_message_that_is_too_large_for_mariadb_is_named_and_waits(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for stores in opened("mariadb", tmp_path, request):
        server = stores.server
        assert server is not None
        ((before,),) = server.execute("SELECT @@GLOBAL.max_allowed_packet")
        rows = [message(0), message(1, payload=b"\0" * PACKET_BYTES)]
        try:
            server.execute(f"SET GLOBAL max_allowed_packet = {2 * PACKET_BYTES}")
            with stores.sink() as sink, stores.reader() as store:
                with pytest.raises(
                    MessageServerError, match=r"offset 1 has 1048576 bytes; max_allowed_packet"
                ):
                    sink.write_table(table(rows))
                assert offsets(store) == []
                server.execute(f"SET GLOBAL max_allowed_packet = {3 * PACKET_BYTES}")
                sink.write_table(table(rows))
                assert offsets(store) == [0, 1]
        finally:
            server.execute(f"SET GLOBAL max_allowed_packet = {before}")


def test_a_text_that_does_not_fit_is_refused_not_cut(on_server: MessageStores) -> None:
    """65,536 bytes of topic cannot come from a packet; a store that cuts would have stored another message."""
    if on_server.kind == "postgres":
        return
    with on_server.sink() as sink:
        with pytest.raises(MessageServerError, match="topic"):
            sink.write_table(table([message(0, topic="x" * (LONGEST_TOPIC + 1))]))
        assert on_server.rows("SELECT COUNT(*) FROM embermq_messages") == [(0,)]


def test_a_range_of_a_topic_is_read_from_the_index(on_server: MessageStores) -> None:
    with on_server.sink() as sink:
        sink.write_table(table([message(n, topic="t/7" if n % 2 else f"u/{n}") for n in range(20_000)]))
    on_server.rows(
        "ANALYZE embermq_messages" if on_server.kind == "postgres" else "ANALYZE TABLE embermq_messages"
    )
    quoted = '"offset"' if on_server.kind == "postgres" else "`offset`"
    plan = on_server.rows(
        f"EXPLAIN SELECT * FROM embermq_messages WHERE topic_hash = {topic_hash('t/7')} AND topic = 't/7'"
        f" AND log_id = {on_server.log_id} AND {quoted} > 3 ORDER BY {quoted} LIMIT 9"
    )
    assert "embermq_messages_by_topic" in str(plan)
    assert "filesort" not in str(plan) and "Sort" not in str(plan)
