"""Texts that all nodes of a cluster have in common: a key of etcd for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock

from embermq.adapters.etcd import etcd_pb2 as pb
from embermq.adapters.etcd.following import ANSWER_S, begin_to_follow, keys_of
from embermq.adapters.etcd.link import EtcdLink
from embermq.ports.membership import SharedTexts

MARGIN_S = 60
"""How much longer etcd keeps what lasts for a time."""
NEVER = pb.KeyValue()
"""Of a key that there is not: etcd knows revision 0 of it."""


class EtcdTexts(SharedTexts):
    """Of the keys that begin with `prefix`. `what` stands in front of why they are not seen."""

    def __init__(self, link: EtcdLink, prefix: str, *, what: str) -> None:
        self._link = link
        self._prefix = prefix
        self._keys = keys_of(prefix, prefix)
        self._what = what
        self._changed: Callable[[Mapping[str, bytes]], None] = _nobody
        self._seen: dict[str, pb.KeyValue] = {}
        """As it was told last."""
        self._turn = Lock()
        """Who has it reads and tells: so what is told later was read later."""

    def put(self, key: str, text: bytes, lasts_s: int) -> bool:
        lease = 0
        if lasts_s:
            granted = pb.LeaseGrantRequest(TTL=lasts_s + MARGIN_S)
            lease = self._link.call("Lease/LeaseGrant", granted, pb.LeaseGrantResponse, ANSWER_S).ID
        row = pb.PutRequest(key=self._name(key), value=text, lease=lease)
        return self._change(key, pb.RequestOp(request_put=row), text)

    def delete(self, key: str) -> bool:
        row = pb.DeleteRangeRequest(key=self._name(key))
        return self._change(key, pb.RequestOp(request_delete_range=row), None)

    def _change(self, key: str, change: pb.RequestOp, text: bytes | None) -> bool:
        seen = self._seen.get(key, NEVER)
        as_seen = pb.Compare(target=pb.Compare.MOD, key=self._name(key), mod_revision=seen.mod_revision)
        request = pb.TxnRequest(compare=[as_seen], success=[change])
        done = self._link.call("KV/Txn", request, pb.TxnResponse, ANSWER_S)
        self._look()
        # What was asked twice, since the first answer did not come, is refused for what the first one did.
        found = self._seen.get(key)
        return bool(done.succeeded) or text == (None if found is None else found.value)

    def _name(self, key: str) -> bytes:
        return f"{self._prefix}{key}".encode()

    def watch(self, changed: Callable[[Mapping[str, bytes]], None]) -> None:
        self._changed = changed
        self._look()
        begin_to_follow(self._link, self._keys, self._look, what=self._what, pauses=True)

    def _look(self) -> int:
        with self._turn:
            found = self._link.call("KV/Range", self._keys, pb.RangeResponse, ANSWER_S)
            self._seen = {each.key.decode().removeprefix(self._prefix): each for each in found.kvs}
            self._changed({key: each.value for key, each in self._seen.items()})
        return int(found.header.revision)


def _nobody(_: Mapping[str, bytes]) -> None:
    """Nobody watches."""
