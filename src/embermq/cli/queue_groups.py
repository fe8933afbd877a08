"""Consumer groups of a durable queue and their consumers, for `embermq queues`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from embermq.cli.terminal import shown, table

if TYPE_CHECKING:
    from embermq.app.control import ControlClient

PAGE = 1_000


def all_groups(broker: ControlClient, path: str) -> Iterator[dict[str, Any]]:
    """By name; `path` is the queue's."""
    for page in _pages(broker, f"{path}/groups", after="name"):
        yield from page


def all_consumers(broker: ControlClient, path: str) -> Iterator[dict[str, Any]]:
    """By group, then client id."""
    for page in _pages(broker, f"{path}/consumers", after_group="group", after="client_id"):
        yield from page


def print_groups(groups: list[dict[str, Any]]) -> None:
    """One line each."""
    rows = [
        (
            shown(one["name"]),
            _state(one),
            f"{one['lag']:,}",
            f"{one['in_flight']:,}",
            f"{one['in_backoff']:,}",
            f"{one['consumers']:,}",
        )
        for one in groups
    ]
    for line in table([("group", "state", "lag", "in flight", "backoff", "consumers"), *rows], names=2):
        print(line)


def print_consumers(consumers: list[dict[str, Any]]) -> None:
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
    for line in table([("consumer", "group", "state", "partitions", "in flight"), *rows], names=4):
        print(line)


def _pages(broker: ControlClient, path: str, **keys: str) -> Iterator[list[dict[str, Any]]]:
    """Each begins behind the last of the page before: its `keys` are the parameters."""
    after = dict.fromkeys(keys, "")
    while page := msgspec.json.decode(
        broker.ask("GET", path, limit=str(PAGE), **after), type=list[dict[str, Any]]
    ):
        yield page
        after = {name: page[-1][key] for name, key in keys.items()}


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
