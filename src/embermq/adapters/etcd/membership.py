"""A cluster in etcd: a key for each node and one for each slot, which go with the lease of their node.

| key | value |
|---|---|
| `/embermq/NAME/nodes/ID` | what the node says of itself, JSON |
| `/embermq/NAME/slots/N` | the id of the node that has the slot |
| `/embermq/NAME/secret` | by which nodes know one another, random; there once a node has asked for it, and stays |
| `/embermq/NAME/bans/...` | see `texts`; what nodes are asked for stands behind it in the order of keys |

A node's epoch is the revision in which its key came, which etcd gives once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from secrets import token_bytes
from typing import TypeVar

import msgspec

from embermq.adapters.etcd import etcd_pb2 as pb
from embermq.adapters.etcd.address import EtcdAddress
from embermq.adapters.etcd.following import ANSWER_S, begin_to_follow, keys_of
from embermq.adapters.etcd.link import EtcdLink
from embermq.adapters.etcd.texts import EtcdTexts
from embermq.ports.errors import StoreError, StoreUnavailable
from embermq.ports.membership import (
    ClusterView,
    MemberRefused,
    Membership,
    NodeAbout,
    NodeLease,
    NodeView,
    SharedTexts,
)

Answer = TypeVar("Answer")
SECRET_BYTES = 32


class EtcdMembership(Membership):
    """Raises ValueError for files of the address that cannot be used."""

    def __init__(self, address: EtcdAddress) -> None:
        self.name = address.name
        self.place = str(address)
        self._prefix = f"/embermq/{address.name}/"
        self._keys = keys_of(f"{self._prefix}nodes/", self._prefix)
        self._link = EtcdLink(address)

    def join(self, about: NodeAbout, slots: Sequence[int], ttl_s: float) -> NodeLease:
        granted = self._call(
            "Lease/LeaseGrant", pb.LeaseGrantRequest(TTL=math.ceil(ttl_s)), pb.LeaseGrantResponse
        )
        lease = NodeLease(granted.ID, float(granted.TTL))
        values = {f"{self._prefix}nodes/{about.node}".encode(): msgspec.json.encode(about)}
        try:
            self._take(lease, values | self._slots(about, slots))
        except MemberRefused:
            self.leave(lease)
            raise
        return lease

    def claim(self, lease: NodeLease, about: NodeAbout, slots: Sequence[int]) -> None:
        try:
            self._take(lease, self._slots(about, slots))
        except StoreUnavailable:
            raise
        except StoreError as error:
            if "lease not found" not in str(error):
                raise
            raise MemberRefused(self.view().nodes) from error

    def _slots(self, about: NodeAbout, slots: Sequence[int]) -> dict[bytes, bytes]:
        return {f"{self._prefix}slots/{slot}".encode(): about.node.encode() for slot in slots}

    def _take(self, lease: NodeLease, values: dict[bytes, bytes]) -> None:
        """Make these keys, which go with the lease. Raises MemberRefused when one is there."""
        request = pb.TxnRequest(
            compare=[pb.Compare(target=pb.Compare.CREATE, key=key, create_revision=0) for key in values],
            success=[
                pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, lease=lease.id))
                for key, value in values.items()
            ],
        )
        done = self._call("KV/Txn", request, pb.TxnResponse)
        # What was asked twice, since the first answer did not come, is refused for what the first one did.
        if not done.succeeded and not all(lease.id == each.lease for each in self._rows(values)):
            raise MemberRefused(self.view().nodes)

    def renew(self, lease: NodeLease, timeout_s: float) -> float:
        return float(max(0, self._link.renewed(pb.LeaseKeepAliveRequest(ID=lease.id), timeout_s).TTL))

    def leave(self, lease: NodeLease) -> None:
        try:
            self._call("Lease/LeaseRevoke", pb.LeaseRevokeRequest(ID=lease.id), pb.LeaseRevokeResponse)
        except StoreUnavailable:
            raise
        except StoreError as error:
            if "lease not found" not in str(error):
                raise

    def view(self) -> ClusterView:
        return self._view(self._range())

    def watch(self, changed: Callable[[ClusterView], None]) -> None:
        def look() -> int:
            found = self._range()
            changed(self._view(found))
            return found.header.revision

        begin_to_follow(self._link, self._keys, look, what="nodes of the cluster are not seen")

    def texts(self, kind: str) -> SharedTexts:
        return EtcdTexts(self._link, f"{self._prefix}{kind}/", what=f"{kind} of the cluster are not seen")

    def secret(self) -> bytes:
        key = f"{self._prefix}secret".encode()
        self._call(
            "KV/Txn",
            pb.TxnRequest(
                compare=[pb.Compare(target=pb.Compare.CREATE, key=key, create_revision=0)],
                success=[pb.RequestOp(request_put=pb.PutRequest(key=key, value=token_bytes(SECRET_BYTES)))],
            ),
            pb.TxnResponse,
        )
        return self._rows([key])[0].value

    def close(self) -> None:
        self._link.close()

    def _call(self, name: str, request: object, answer: Callable[..., Answer]) -> Answer:
        found: Answer = self._link.call(name, request, answer, ANSWER_S)
        return found

    def _range(self) -> pb.RangeResponse:
        return self._call("KV/Range", self._keys, pb.RangeResponse)

    def _rows(self, keys: Sequence[bytes] | dict[bytes, bytes]) -> list[pb.KeyValue]:
        found = {each.key: each for each in self._range().kvs}
        return [found.get(key) or pb.KeyValue(key=key) for key in keys]

    def _view(self, found: pb.RangeResponse) -> ClusterView:
        nodes = f"{self._prefix}nodes/"
        slots: dict[int, list[int]] = {}
        for each in found.kvs:
            key = each.key.decode()
            number = key.removeprefix(f"{self._prefix}slots/")
            if number.isdigit():
                slots.setdefault(each.lease, []).append(int(number))
        return ClusterView(
            name=self.name,
            place=self.place,
            nodes=[
                NodeView(
                    about=self._about(each),
                    epoch=each.create_revision,
                    lease_left_s=self._left_s(each.lease),
                    slots=sorted(slots.get(each.lease, ())),
                )
                for each in found.kvs
                if each.key.decode().startswith(nodes)
            ],
        )

    def _about(self, found: pb.KeyValue) -> NodeAbout:
        try:
            return msgspec.json.decode(found.value, type=NodeAbout)
        except msgspec.MsgspecError as error:
            raise StoreError(f"{self.place}: key {found.key!r}: {error}") from error

    def _left_s(self, lease: int) -> float:
        asked = pb.LeaseTimeToLiveRequest(ID=lease)
        return float(max(0, self._call("Lease/LeaseTimeToLive", asked, pb.LeaseTimeToLiveResponse).TTL))
