"""Bans of a cluster: from where, how many, and what a broker has banned before it was in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest

from embermq.access.bans import Ban, BanKind, Bans
from embermq.admin.errors import OperationRefused
from embermq.app import bans
from embermq.app.bans import FILE_NAME, BanFile, SharedBans
from embermq.app.errors import StartError
from embermq.ports.errors import StoreUnavailable
from embermq.ports.membership import SharedTexts

NOW = 1_000_000
ANN, BOB = Ban(BanKind.USER, "ann", NOW), Ban(BanKind.USER, "bob", NOW, NOW + 1_500)


class Texts(SharedTexts):
    """In memory."""

    def __init__(self) -> None:
        self.found: dict[str, bytes] = {}
        self.lasts: dict[str, int] = {}
        self.is_away = False
        self.changed: Callable[[Mapping[str, bytes]], None] = lambda _: None
        self.by_others: list[dict[str, bytes]] = []
        """What another node makes of it just before each change here."""

    def put(self, key: str, text: bytes, lasts_s: int) -> bool:
        is_as_seen = self._is_as_seen()
        if is_as_seen:
            self.found[key], self.lasts[key] = text, lasts_s
        self.changed(dict(self.found))
        return is_as_seen

    def delete(self, key: str) -> bool:
        is_as_seen = self._is_as_seen()
        if is_as_seen:
            self.found.pop(key, None)
        self.changed(dict(self.found))
        return is_as_seen

    def _is_as_seen(self) -> bool:
        self._look()
        if not self.by_others:
            return True
        self.found = self.by_others.pop(0)
        return False

    def watch(self, changed: Callable[[Mapping[str, bytes]], None]) -> None:
        self._look()
        self.changed = changed
        changed(dict(self.found))

    def _look(self) -> None:
        if self.is_away:
            raise StoreUnavailable("etcd://127.0.0.1:1: away")


class Side:
    """One node."""

    def __init__(self, texts: Texts, folder: Path) -> None:
        self.told: list[Bans] = []
        self.bans = SharedBans(texts, folder, lambda call: call())
        self.bans.begin(self.told.append, NOW)

    @property
    def values(self) -> list[str]:
        return [ban.value for ban in self.told[-1].all(NOW)]


def test_what_a_node_bans_is_told_to_it_and_found_by_the_next(tmp_path: Path) -> None:
    texts = Texts()
    one = Side(texts, tmp_path)
    one.bans.put(ANN)
    one.bans.put(BOB)
    assert one.values == ["ann", "bob"]
    assert sorted(texts.lasts.values()) == [0, 2], "seconds, not less than it lasts"
    one.bans.lift(ANN)
    assert Side(texts, tmp_path).values == one.values == ["bob"]


def test_bans_of_before_the_cluster_hold_in_it(tmp_path: Path) -> None:
    over = Ban(BanKind.USER, "carl", 0, NOW)
    file = tmp_path / FILE_NAME
    file.write_bytes(msgspec.json.encode([ANN, over]))
    assert Side(Texts(), tmp_path).values == ["ann"]
    assert not file.exists()


@pytest.mark.parametrize(
    ("held_ms", "own_ms", "kept_ms"),
    [(NOW + 5, 0, 0), (0, NOW + 5, 0), (NOW + 5, NOW + 9, NOW + 9), (NOW + 9, NOW + 5, NOW + 9)],
)
def test_of_two_bans_of_the_same_value_the_longer_holds(
    tmp_path: Path, held_ms: int, own_ms: int, kept_ms: int
) -> None:
    texts = Texts()
    Side(texts, tmp_path).bans.put(Ban(BanKind.USER, "ann", NOW, held_ms))
    (tmp_path / FILE_NAME).write_bytes(msgspec.json.encode([Ban(BanKind.USER, "ann", NOW, own_ms)]))
    (kept,) = Side(texts, tmp_path).told[-1].all(NOW)
    assert kept.until_ms == kept_ms


@pytest.mark.promise("cluster-23")
@pytest.mark.parametrize(
    ("others_ms", "own_ms", "kept_ms"),
    [(NOW + 5, 0, 0), (0, NOW + 5, 0), (NOW + 5, NOW + 9, NOW + 9), (NOW + 9, NOW + 5, NOW + 9)],
)
def test_of_two_bans_that_nodes_put_at_the_same_time_the_longer_holds(
    tmp_path: Path, others_ms: int, own_ms: int, kept_ms: int
) -> None:
    texts = Texts()
    one = Side(texts, tmp_path)
    one.bans.put(ANN)
    (key,) = texts.found
    texts.by_others.append({key: msgspec.json.encode(Ban(BanKind.USER, "ann", NOW, others_ms))})
    one.bans.put(Ban(BanKind.USER, "ann", NOW, own_ms))
    (kept,) = one.told[-1].all(NOW)
    assert kept.until_ms == kept_ms


def test_a_ban_that_another_node_changes_meanwhile_is_not_lifted(tmp_path: Path) -> None:
    texts = Texts()
    one = Side(texts, tmp_path)
    one.bans.put(ANN)
    (key,) = texts.found
    texts.by_others.append({key: msgspec.json.encode(Ban(BanKind.USER, "ann", NOW, NOW + 5))})
    with pytest.raises(OperationRefused, match="another node has changed this ban"):
        one.bans.lift(ANN)
    (kept,) = one.told[-1].all(NOW)
    assert kept.until_ms == NOW + 5
    one.bans.lift(kept)
    assert one.values == []


def test_what_is_known_stays_while_etcd_is_away(tmp_path: Path) -> None:
    texts = Texts()
    one = Side(texts, tmp_path)
    one.bans.put(ANN)
    texts.is_away = True
    with pytest.raises(StoreUnavailable, match="it may have been done"):
        one.bans.put(BOB)
    with pytest.raises(StoreUnavailable, match="it may have been done"):
        one.bans.lift(ANN)
    assert one.values == ["ann"]
    with pytest.raises(StartError, match=r"cluster\.etcd: bans"):
        Side(texts, tmp_path)


def test_they_have_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bans, "BYTES_MAX", 200)
    one = Side(Texts(), tmp_path)
    one.bans.put(ANN)
    with pytest.raises(OperationRefused, match="may take 200 bytes in etcd"):
        one.bans.put(BOB)
    one.bans.put(ANN)
    one.bans.lift(ANN)
    one.bans.put(BOB)
    assert one.values == ["bob"]


def test_what_is_not_understood_is_no_start_and_changes_nothing(tmp_path: Path) -> None:
    texts = Texts()
    texts.found["animal/x"] = b'{"kind":"animal","value":"dog","since_ms":0}'
    with pytest.raises(StartError, match="is not understood"):
        Side(texts, tmp_path)


def test_a_broker_alone_keeps_them_in_its_file(tmp_path: Path) -> None:
    told: list[Bans] = []

    def begun() -> BanFile:
        found = BanFile(tmp_path, lambda call: call())
        found.begin(told.append)
        return found

    first = begun()
    first.put(BOB)
    first.put(Ban(BanKind.USER, "ann", NOW + 2_000))
    assert [ban.value for ban in told[-1].all(0)] == ["ann"], "what is over is forgotten"
    begun().lift(told[-1].all(0)[0])
    assert not told[-1].all(0)
