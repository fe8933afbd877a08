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


class EtcdTexts(SharedTexts):
    """Of the keys that begin with `prefix`. `what` stands in front of why they are not seen."""

    def __init__(self, link: EtcdLink, prefix: str, *, what: str) -> None:
        self._link = link
        self._prefix = prefix
        self._keys = keys_of(prefix, prefix)
        self._what = what
        self._changed: Callable[[Mapping[str, bytes]], None] = _nobody
        self._turn = Lock()
        """Who has it reads and tells: so what is told later was read later."""

    def put(self, key: str, text: bytes, lasts_s: int) -> None:
        lease = 0
        if lasts_s:
            granted = pb.LeaseGrantRequest(TTL=lasts_s + MARGIN_S)
            lease = self._link.call("Lease/LeaseGrant", granted, pb.LeaseGrantResponse, ANSWER_S).ID
        row = pb.PutRequest(key=f"{self._prefix}{key}".encode(), value=text, lease=lease)
        request = pb.TxnRequest(success=[pb.RequestOp(request_put=row)])
        self._link.call("KV/Txn", request, pb.TxnResponse, ANSWER_S)
        self._look()

    def delete(self, key: str) -> None:
        request = pb.DeleteRangeRequest(key=f"{self._prefix}{key}".encode())
        self._link.call("KV/DeleteRange", request, pb.DeleteRangeResponse, ANSWER_S)
        self._look()

    def watch(self, changed: Callable[[Mapping[str, bytes]], None]) -> None:
        self._changed = changed
        self._look()
        begin_to_follow(self._link, self._keys, self._look, what=self._what, pauses=True)

    def _look(self) -> int:
        with self._turn:
            found = self._link.call("KV/Range", self._keys, pb.RangeResponse, ANSWER_S)
            self._changed({each.key.decode().removeprefix(self._prefix): each.value for each in found.kvs})
        return int(found.header.revision)


def _nobody(_: Mapping[str, bytes]) -> None:
    """Nobody watches."""
