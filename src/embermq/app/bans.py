"""Bans of addresses and clients: a file in the data directory, and in a cluster what every node has from etcd."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path

import msgspec

from embermq.access.bans import Ban, Bans
from embermq.admin.errors import OperationRefused
from embermq.app.durable_file import replace_durably
from embermq.app.errors import StartError
from embermq.app.log_side import Post
from embermq.ports.errors import StoreError, StoreUnavailable
from embermq.ports.membership import SharedTexts

FILE_NAME = "bans.json"
ToldBans = Callable[[Bans], None]
"""Called on the event loop with those that there are now."""


class BanFile:
    """Read at the start; the broker alone writes it. See `BanStore`."""

    def __init__(self, data_dir: Path, post: Post) -> None:
        self._path = data_dir / FILE_NAME
        self._post = post
        self._bans = Bans()
        self._told: ToldBans | None = None

    def begin(self, told: ToldBans) -> None:
        """Raises StartError for a file that cannot be read: whoever is banned would come in."""
        self._told, self._bans = told, Bans(bans_in(self._path))
        told(self._bans)

    def put(self, ban: Ban) -> None:
        others = [
            one for one in self._bans.all(ban.since_ms) if (one.kind, one.value) != (ban.kind, ban.value)
        ]
        self._save([*others, ban])

    def lift(self, ban: Ban) -> None:
        self._save([one for one in self._bans.all(0) if one != ban])

    def _save(self, bans: Sequence[Ban]) -> None:
        assert self._told is not None
        found = Bans(bans)
        try:
            replace_durably(self._path, msgspec.json.format(msgspec.json.encode(found.all(0)), indent=1))
        except OSError as error:
            raise StoreError(f"{self._path} cannot be written: {error}") from error
        self._bans = found
        self._post(partial(self._told, found))


def bans_in(path: Path) -> list[Ban]:
    """None when there is no file. Raises StartError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Ban])
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise StartError(f"{path} cannot be read: {error}") from error


LOG = logging.getLogger("embermq")
KIND = "bans"
BYTES_MAX = 4 * 1024 * 1024
"""Of all of them in etcd, so that they come in one answer. 10,000 of addresses take a third of it."""


class SharedBans:
    """What is known stays in force while etcd is away. See `BanStore`."""

    def __init__(self, texts: SharedTexts, data_dir: Path, post: Post) -> None:
        self._texts = texts
        self._file = data_dir / FILE_NAME
        self._post = post
        self._told: ToldBans | None = None
        self._bytes: Mapping[str, int] = {}
        self._until_ms: Mapping[str, int] = {}
        """Both by key."""

    def begin(self, told: ToldBans, now_ms: int) -> None:
        """Read them, and have them watched. What this node has banned before it was in the cluster holds there, too; of
        two of the same value the longer. Raises StartError when etcd does not answer: whoever is banned would come
        in."""
        self._told = told
        try:
            self._texts.watch(self._seen)
            own = [ban for ban in bans_in(self._file) if not ban.is_over(now_ms)]
            for ban in own:
                if not self._is_held_longer(ban):
                    self._put(ban, now_ms)
            if own:
                LOG.warning("%d bans of %s hold in the cluster now", len(own), self._file)
            self._file.unlink(missing_ok=True)
        except (StoreError, OperationRefused, OSError) as error:
            raise StartError(f"cluster.etcd: bans: {error}") from error

    def put(self, ban: Ban) -> None:
        self._put(ban, ban.since_ms)

    def lift(self, ban: Ban) -> None:
        try:
            is_done = self._texts.delete(_key(ban))
        except StoreUnavailable as error:
            raise _unknown(error) from error
        if not is_done:
            raise OperationRefused(
                "another node has changed this ban at the same time: look at it, and lift it again"
            )

    def _put(self, ban: Ban, now_ms: int) -> None:
        key, text = _key(ban), msgspec.json.encode(ban)
        size = sum((dict(self._bytes) | {key: len(key) + len(text)}).values())
        if size > BYTES_MAX:
            raise OperationRefused(
                f"all bans together may take {BYTES_MAX} bytes in etcd, and would take {size}: lift others first"
            )
        lasts_s = -(-(ban.until_ms - now_ms) // 1000) if ban.until_ms else 0
        try:
            # Of two that nodes put at the same time, neither having seen the other, the longer holds.
            while not self._texts.put(key, text, lasts_s) and not self._is_held_longer(ban):
                pass
        except StoreUnavailable as error:
            raise _unknown(error) from error

    def _is_held_longer(self, ban: Ban) -> bool:
        held_ms = self._until_ms.get(_key(ban))
        return held_ms is not None and (held_ms == 0 or 0 < ban.until_ms <= held_ms)

    def _seen(self, found: Mapping[str, bytes]) -> None:
        """On any thread. Raises StoreError for what a later version has put there: what is known stays."""
        assert self._told is not None
        try:
            by_key = {key: msgspec.json.decode(text, type=Ban) for key, text in found.items()}
            bans = Bans(by_key.values())
        except ValueError as error:
            raise StoreError(f"a ban is not understood: {error}") from error
        self._bytes = {key: len(key) + len(text) for key, text in found.items()}
        self._until_ms = {key: ban.until_ms for key, ban in by_key.items()}
        # At a start this is told before the first listener opens: the loop takes its callbacks in order.
        with suppress(RuntimeError):  # the event loop has ended
            self._post(partial(self._told, bans))


def _key(ban: Ban) -> str:
    """A client id may be longer than etcd wants keys to be."""
    return f"{ban.kind.value}/{sha256(ban.value.encode()).hexdigest()}"


def _unknown(error: StoreUnavailable) -> StoreUnavailable:
    return StoreUnavailable(f"cluster.etcd: {error}; it may have been done: look when etcd answers")
