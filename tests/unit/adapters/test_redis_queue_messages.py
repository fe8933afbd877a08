"""A durable queue in Redis, read beside its broker: HSCAN names a field twice while a hash grows or shrinks."""

from __future__ import annotations

from typing import cast

import pytest

from embermq.adapters.redis.blocking import BlockingRedis
from embermq.adapters.redis.queue_messages import RedisQueueMessages
from embermq.formats.redis_queues import encode_delayed
from embermq.model.queue_rows import DelayedRow
from embermq.ports.errors import StoreError


class Growing:
    """A server whose hash moves to a larger table between two pages of a scan."""

    prefix = ""

    def __init__(self, *pages: dict[bytes, bytes]) -> None:
        self._pages = pages

    def at(self, _key: str) -> Growing:
        return self

    def hscan(self, _key: str, cursor: int, count: int) -> tuple[int, dict[bytes, bytes]]:
        assert count > 0
        return (cursor + 1) % len(self._pages), self._pages[cursor]


def messages_in(*pages: dict[bytes, bytes]) -> RedisQueueMessages:
    return RedisQueueMessages(cast(BlockingRedis, Growing(*pages)), "orders")


def delayed(ticket: int) -> bytes:
    return encode_delayed(DelayedRow(0, ticket, 7, -1, None, 5_000, 9_000, 20), 7)


def test_a_delayed_message_that_a_scan_names_twice_is_one() -> None:
    first, second, third = (delayed(ticket) for ticket in (1, 2, 3))
    found = messages_in({b"1": first, b"2": second}, {b"2": second, b"3": third}).delayed(0)
    assert sorted(row.ticket for row in found) == [1, 2, 3]


@pytest.mark.parametrize("page", [{b"1": b"\xff"}, {b"one": b""}], ids=["value", "field"])
def test_what_the_layout_does_not_have_is_told_with_its_key(page: dict[bytes, bytes]) -> None:
    with pytest.raises(StoreError, match=r"key 'q:d:\{orders\}"):
        messages_in(page).delayed(0)
