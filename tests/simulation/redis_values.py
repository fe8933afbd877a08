"""What a simulated Redis holds: its keys with their values, and the commands on them that our scripts and adapters use.

The contract suites of all Redis adapters run on it as on a real one, so that it cannot stray far.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from typing import TypeAlias

Words: TypeAlias = Sequence[bytes]
Reply: TypeAlias = "bytes | int | float | list[Reply] | RedisError | None"
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


class RedisError(Exception):
    """An error reply; its text begins with its code."""


class Status(bytes):
    """A reply such as OK."""


OK = Status(b"OK")


class SortedSet:
    """Members by score, then by their bytes."""

    def __init__(self) -> None:
        self.scores: dict[bytes, float] = {}
        self.order: list[tuple[float, bytes]] = []

    def add(self, member: bytes, score: float) -> bool:
        before = self.scores.get(member)
        if before == score:
            return False
        if before is not None:
            self._forget(before, member)
        self.scores[member] = score
        insort(self.order, (score, member))
        return before is None

    def remove(self, member: bytes) -> bool:
        score = self.scores.pop(member, None)
        if score is None:
            return False
        self._forget(score, member)
        return True

    def _forget(self, score: float, member: bytes) -> None:
        del self.order[bisect_left(self.order, (score, member))]

    def between(self, low: bytes, high: bytes) -> list[tuple[float, bytes]]:
        """By score, as BYSCORE has it."""
        (least, above), (most, below) = _bound(low), _bound(high)
        first = (
            bisect_right(self.order, (least, b"\xff" * 64)) if above else bisect_left(self.order, (least,))
        )
        last = bisect_left(self.order, (most,)) if below else bisect_right(self.order, (most, b"\xff" * 64))
        return self.order[first:last]

    def copy(self) -> SortedSet:
        made = SortedSet()
        made.scores, made.order = dict(self.scores), list(self.order)
        return made


Value: TypeAlias = "bytes | dict[bytes, bytes] | list[bytes] | set[bytes] | SortedSet"
KINDS = {bytes: b"string", dict: b"hash", list: b"list", set: b"set", SortedSet: b"zset"}


def _bound(text: bytes) -> tuple[float, bool]:
    """A score and whether it is left out."""
    if text.startswith(b"("):
        return float(text[1:]), True
    return float(text), False


def score_text(score: float) -> bytes:
    """As Redis writes it."""
    return b"%d" % score if score == int(score) else repr(score).encode()


def pattern(glob: bytes) -> re.Pattern[bytes]:
    """Of KEYS and SCAN."""
    found, at = b"", 0
    while at < len(glob):
        one = glob[at : at + 1]
        if one == b"*":
            found += b".*"
        elif one == b"?":
            found += b"."
        elif one == b"[":
            end = glob.index(b"]", at)
            found += glob[at : end + 1]
            at = end
        elif one == b"\\":
            at += 1
            found += re.escape(glob[at : at + 1])
        else:
            found += re.escape(one)
        at += 1
    return re.compile(found, re.DOTALL)


class RedisValues:
    """`now_ms` is the server's clock. `commands` are by name; each takes the words behind it."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.values: dict[bytes, Value] = {}
        self.expires: dict[bytes, int] = {}
        self.commands: dict[bytes, Callable[..., Reply]] = {
            name[4:].upper().encode(): getattr(self, name) for name in dir(self) if name.startswith("cmd_")
        }

    def copy(self) -> tuple[dict[bytes, Value], dict[bytes, int]]:
        """All that is there, for `restore`."""
        return {key: _copied(value) for key, value in self.values.items()}, dict(self.expires)

    def restore(self, kept: tuple[dict[bytes, Value], dict[bytes, int]]) -> None:
        """What was there comes back, and nothing else is."""
        self.values = {key: _copied(value) for key, value in kept[0].items()}
        self.expires = dict(kept[1])

    # Values by kind; a container that is empty is not there

    def _live(self, key: bytes) -> Value | None:
        due_ms = self.expires.get(key)
        if due_ms is not None and due_ms <= self._now_ms():
            del self.expires[key], self.values[key]
        return self.values.get(key)

    def _text(self, key: bytes) -> bytes | None:
        value = self._live(key)
        if value is None or isinstance(value, bytes):
            return value
        raise RedisError(WRONG_TYPE)

    def _hash(self, key: bytes) -> dict[bytes, bytes]:
        value = self._live(key)
        if value is None:
            return {}
        if isinstance(value, dict):
            return value
        raise RedisError(WRONG_TYPE)

    def _list(self, key: bytes) -> list[bytes]:
        value = self._live(key)
        if value is None:
            return []
        if isinstance(value, list):
            return value
        raise RedisError(WRONG_TYPE)

    def _set(self, key: bytes) -> set[bytes]:
        value = self._live(key)
        if value is None:
            return set()
        if isinstance(value, set):
            return value
        raise RedisError(WRONG_TYPE)

    def _sorted(self, key: bytes) -> SortedSet:
        value = self._live(key)
        if value is None:
            return SortedSet()
        if isinstance(value, SortedSet):
            return value
        raise RedisError(WRONG_TYPE)

    def _keep(self, key: bytes, value: Value) -> None:
        is_empty = not (value.order if isinstance(value, SortedSet) else value)
        if is_empty:
            self.values.pop(key, None)
            self.expires.pop(key, None)
        else:
            self.values[key] = value

    def _remove(self, key: bytes) -> bool:
        is_there = self._live(key) is not None
        self.values.pop(key, None)
        self.expires.pop(key, None)
        return is_there

    # Keys

    def cmd_del(self, *keys: bytes) -> Reply:
        return sum(map(self._remove, keys))

    cmd_unlink = cmd_del

    def cmd_exists(self, *keys: bytes) -> Reply:
        return sum(self._live(key) is not None for key in keys)

    def cmd_type(self, key: bytes) -> Reply:
        value = self._live(key)
        return Status(b"none" if value is None else KINDS[type(value)])

    def cmd_rename(self, key: bytes, renamed: bytes) -> Reply:
        value = self._live(key)
        if value is None:
            raise RedisError("ERR no such key")
        due_ms = self.expires.get(key)
        self._remove(key)
        self._remove(renamed)
        self.values[renamed] = value
        if due_ms is not None:
            self.expires[renamed] = due_ms
        return OK

    def cmd_renamenx(self, key: bytes, renamed: bytes) -> Reply:
        if self._live(renamed) is not None:
            return 0
        self.cmd_rename(key, renamed)
        return 1

    def cmd_pttl(self, key: bytes) -> Reply:
        if self._live(key) is None:
            return -2
        due_ms = self.expires.get(key)
        return -1 if due_ms is None else due_ms - self._now_ms()

    def cmd_pexpiretime(self, key: bytes) -> Reply:
        if self._live(key) is None:
            return -2
        return self.expires.get(key, -1)

    def cmd_pexpireat(self, key: bytes, at_ms: bytes) -> Reply:
        if self._live(key) is None:
            return 0
        self.expires[key] = int(at_ms)
        return 1

    def cmd_persist(self, key: bytes) -> Reply:
        return int(self._live(key) is not None and self.expires.pop(key, None) is not None)

    def cmd_scan(self, _cursor: bytes, *options: bytes) -> Reply:
        named = {options[at].upper(): options[at + 1] for at in range(0, len(options), 2)}
        fits = pattern(named.get(b"MATCH", b"*"))
        return [
            b"0",
            [key for key in list(self.values) if self._live(key) is not None and fits.fullmatch(key)],
        ]

    def cmd_keys(self, glob: bytes) -> Reply:
        fits = pattern(glob)
        return [key for key in list(self.values) if self._live(key) is not None and fits.fullmatch(key)]

    def cmd_dbsize(self) -> Reply:
        return len(self.values)

    def cmd_flushall(self, *_how: bytes) -> Reply:
        self.values.clear()
        self.expires.clear()
        return OK

    cmd_flushdb = cmd_flushall

    # Texts

    def cmd_get(self, key: bytes) -> Reply:
        return self._text(key)

    def cmd_mget(self, *keys: bytes) -> Reply:
        values = map(self._live, keys)
        return [value if isinstance(value, bytes) else None for value in values]

    def cmd_set(self, key: bytes, value: bytes, *options: bytes) -> Reply:
        due_ms, at = None, 0
        keeps = False
        while at < len(options):
            option = options[at].upper()
            at += 1
            if option == b"NX" and self._live(key) is not None:
                return None
            if option == b"XX" and self._live(key) is None:
                return None
            if option == b"KEEPTTL":
                keeps = True
            if option in (b"PX", b"EX", b"PXAT", b"EXAT"):
                given = int(options[at]) * (1 if option.startswith(b"P") else 1000)
                due_ms = given if option.endswith(b"AT") else self._now_ms() + given
                at += 1
        if not keeps:
            self.expires.pop(key, None)
        self.values[key] = value
        if due_ms is not None:
            self.expires[key] = due_ms
        return OK

    def cmd_getrange(self, key: bytes, first: bytes, last: bytes) -> Reply:
        text = self._text(key) or b""
        start, end = _span(len(text), int(first), int(last))
        return text[start:end]

    def cmd_setrange(self, key: bytes, at: bytes, part: bytes) -> Reply:
        text = self._text(key) or b""
        start = int(at)
        text = text.ljust(start, b"\0")
        self.values[key] = text[:start] + part + text[start + len(part) :]
        return len(self.values[key])  # type: ignore[arg-type]  # it is a text

    def cmd_strlen(self, key: bytes) -> Reply:
        return len(self._text(key) or b"")

    # Hashes

    def cmd_hset(self, key: bytes, *pairs: bytes) -> Reply:
        found = self._hash(key)
        before = len(found)
        found.update(zip(pairs[::2], pairs[1::2], strict=True))
        self._keep(key, found)
        return len(found) - before

    def cmd_hsetnx(self, key: bytes, field: bytes, value: bytes) -> Reply:
        found = self._hash(key)
        if field in found:
            return 0
        found[field] = value
        self._keep(key, found)
        return 1

    def cmd_hget(self, key: bytes, field: bytes) -> Reply:
        return self._hash(key).get(field)

    def cmd_hmget(self, key: bytes, *fields: bytes) -> Reply:
        found = self._hash(key)
        return [found.get(field) for field in fields]

    def cmd_hdel(self, key: bytes, *fields: bytes) -> Reply:
        found = self._hash(key)
        gone = sum(found.pop(field, None) is not None for field in fields)
        if gone:
            self._keep(key, found)
        return gone

    def cmd_hexists(self, key: bytes, field: bytes) -> Reply:
        return int(field in self._hash(key))

    def cmd_hlen(self, key: bytes) -> Reply:
        return len(self._hash(key))

    def cmd_hkeys(self, key: bytes) -> Reply:
        return list(self._hash(key))

    def cmd_hgetall(self, key: bytes) -> Reply:
        return [part for pair in self._hash(key).items() for part in pair]

    def cmd_hincrby(self, key: bytes, field: bytes, by: bytes) -> Reply:
        found = self._hash(key)
        number = int(found.get(field, b"0")) + int(by)
        found[field] = b"%d" % number
        self._keep(key, found)
        return number

    def cmd_hscan(self, key: bytes, _cursor: bytes, *_options: bytes) -> Reply:
        return [b"0", self.cmd_hgetall(key)]

    # Lists

    def cmd_rpush(self, key: bytes, *values: bytes) -> Reply:
        found = self._list(key)
        found.extend(values)
        self._keep(key, found)
        return len(found)

    def cmd_llen(self, key: bytes) -> Reply:
        return len(self._list(key))

    def cmd_ltrim(self, key: bytes, first: bytes, last: bytes) -> Reply:
        found = self._list(key)
        start, end = _span(len(found), int(first), int(last))
        self._keep(key, found[start:end])
        return OK

    def cmd_lindex(self, key: bytes, at: bytes) -> Reply:
        found = self._list(key)
        index = int(at)
        return found[index] if -len(found) <= index < len(found) else None

    def cmd_lset(self, key: bytes, at: bytes, value: bytes) -> Reply:
        self._list(key)[int(at)] = value
        return OK

    def cmd_lrange(self, key: bytes, first: bytes, last: bytes) -> Reply:
        found = self._list(key)
        start, end = _span(len(found), int(first), int(last))
        return list(found[start:end])

    # Sets

    def cmd_sadd(self, key: bytes, *members: bytes) -> Reply:
        found = self._set(key)
        before = len(found)
        found.update(members)
        self._keep(key, found)
        return len(found) - before

    def cmd_srem(self, key: bytes, *members: bytes) -> Reply:
        found = self._set(key)
        before = len(found)
        found.difference_update(members)
        if before:
            self._keep(key, found)
        return before - len(found)

    def cmd_sismember(self, key: bytes, member: bytes) -> Reply:
        return int(member in self._set(key))

    def cmd_smismember(self, key: bytes, *members: bytes) -> Reply:
        found = self._set(key)
        return [int(member in found) for member in members]

    def cmd_smembers(self, key: bytes) -> Reply:
        return [*sorted(self._set(key))]

    # Sorted sets

    def cmd_zadd(self, key: bytes, *pairs: bytes) -> Reply:
        found = self._sorted(key)
        added = sum(found.add(pairs[at + 1], float(pairs[at])) for at in range(0, len(pairs), 2))
        self._keep(key, found)
        return added

    def cmd_zrem(self, key: bytes, *members: bytes) -> Reply:
        found = self._sorted(key)
        gone = sum(map(found.remove, members))
        if gone:
            self._keep(key, found)
        return gone

    def cmd_zcard(self, key: bytes) -> Reply:
        return len(self._sorted(key).order)

    def cmd_zscore(self, key: bytes, member: bytes) -> Reply:
        score = self._sorted(key).scores.get(member)
        return None if score is None else score_text(score)

    def cmd_zmscore(self, key: bytes, *members: bytes) -> Reply:
        found = self._sorted(key).scores
        return [None if (score := found.get(member)) is None else score_text(score) for member in members]

    def cmd_zrange(self, key: bytes, low: bytes, high: bytes, *options: bytes) -> Reply:
        found, named = self._sorted(key), [option.upper() for option in options]
        is_backward = b"REV" in named
        if b"BYSCORE" in named:
            chosen = found.between(*((high, low) if is_backward else (low, high)))
            chosen = chosen[::-1] if is_backward else chosen
        else:
            order = found.order[::-1] if is_backward else found.order
            start, end = _span(len(order), int(low), int(high))
            chosen = order[start:end]
        if b"LIMIT" in named:
            at = named.index(b"LIMIT")
            skipped, count = int(options[at + 1]), int(float(options[at + 2]))
            chosen = chosen[skipped : skipped + count if count >= 0 else None]
        if b"WITHSCORES" in named:
            return [part for score, member in chosen for part in (member, score_text(score))]
        return [member for _, member in chosen]

    def cmd_zscan(self, key: bytes, _cursor: bytes, *_options: bytes) -> Reply:
        return [b"0", self.cmd_zrange(key, b"0", b"-1", b"WITHSCORES")]

    def cmd_zremrangebyscore(self, key: bytes, low: bytes, high: bytes) -> Reply:
        found = self._sorted(key)
        gone = found.between(low, high)
        return self.cmd_zrem(key, *(member for _, member in gone))

    def cmd_zremrangebylex(self, key: bytes, low: bytes, high: bytes) -> Reply:
        members = [member for _, member in self._sorted(key).order]
        gone = [one for one in members if _is_behind(one, low) and not _is_behind(one, _turned(high))]
        return self.cmd_zrem(key, *gone)


def _copied(value: Value) -> Value:
    return value if isinstance(value, bytes) else value.copy()


def _span(length: int, first: int, last: int) -> tuple[int, int]:
    """Of Redis's inclusive, perhaps negative bounds."""
    first = max(0, first + length if first < 0 else first)
    last = last + length if last < 0 else last
    return first, max(first, last + 1)


def _is_behind(member: bytes, bound: bytes) -> bool:
    return member >= bound[1:] if bound.startswith(b"[") else member > bound[1:]


def _turned(bound: bytes) -> bytes:
    return (b"(" if bound.startswith(b"[") else b"[") + bound[1:]
