"""Consumer groups of a durable queue and their consumers, for `embermq queues`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from embermq.cli.terminal import shown, table

GROUP_HEADINGS = ("group", "state", "lag", "in flight", "backoff", "consumers")
CONSUMER_HEADINGS = ("consumer", "group", "state", "partitions", "in flight")


def group_lines(groups: Sequence[dict[str, Any]]) -> list[str]:
    """One line each."""
    rows = [
        (
            shown(one["name"]),
            _state(one),
            *(f"{one[name]:,}" for name in ("lag", "in_flight", "in_backoff", "consumers")),
        )
        for one in groups
    ]
    return table([GROUP_HEADINGS, *rows], names=2)


def consumer_lines(consumers: Sequence[dict[str, Any]]) -> list[str]:
    """One line each."""
    rows = [
        (
            shown(one["client_id"]),
            shown(one["group"]),
            f"away until {one['away_until']}" if one["away_until"] else "connected",
            "any" if one["partitions"] is None else _ranges(one["partitions"]),
            f"{one['in_flight']} of {one['prefetch']}",
        )
        for one in consumers
    ]
    return table([CONSUMER_HEADINGS, *rows], names=4)


def _state(group: dict[str, Any]) -> str:
    return f"paused, {_presence(group)}" if group["paused"] else _presence(group)


def _presence(group: dict[str, Any]) -> str:
    if group["removed_at"] is None:
        return "consumed"
    return f"no consumer since {_minute(group['idle_since'])}, removed {_minute(group['removed_at'])}"


def _minute(moment: str) -> str:
    return datetime.fromisoformat(moment).strftime("%Y-%m-%d %H:%M UTC")


def _ranges(numbers: list[int]) -> str:
    if not numbers:
        return "none"
    is_block = numbers == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 1
    return f"{numbers[0]}-{numbers[-1]}" if is_block else ", ".join(map(str, numbers))
