"""A cluster in etcd: a key for each node and one for each slot, which go with the lease of their node.

| key | value |
|---|---|
| `/embermq/NAME/nodes/ID` | what the node says of itself, JSON |
| `/embermq/NAME/slots/N` | the id of the node that has the slot |
| `/embermq/NAME/secret` | by which nodes know one another, random; there once a node has asked for it, and stays |
| `/embermq/NAME/bans/...` | see `EtcdTexts`; what nodes are asked for stands behind it in the order of keys |

A node's epoch is the revision in which its key came, which etcd gives once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from secrets import token_bytes
from threading import Lock, Thread
from typing import TypeVar

import msgspec

from embermq.adapters.etcd import etcd_pb2 as pb
from embermq.adapters.etcd.address import EtcdAddress
from embermq.adapters.etcd.link import EtcdLink
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

LOG = logging.getLogger("embermq.etcd")
ANSWER_S = 5.0
"""How long one question may take, other members included."""


def begin_to_follow(
    link: EtcdLink, keys: pb.RangeRequest, look: Callable[[], int], *, what: str, pauses: bool = False
) -> None:
    """Call `look` now and after every change of these keys, on a thread of its own, until the link is closed. It
    returns the revision that it has seen; what has changed up to that is not told again. `what` stands in front of why
    it failed. `pauses`: it is called a few times a second at most."""
    follow = _Follow(link, keys, look, what, pauses=pauses)
    Thread(target=follow.run, name=f"etcd watch: {what}", daemon=True).start()


class _Follow:
    def __init__(
        self, link: EtcdLink, keys: pb.RangeRequest, look: Callable[[], int], what: str, *, pauses: bool
    ) -> None:
        self._link = link
        self._keys = keys
        self._look = look
        self._what = what
        self._pauses = pauses

    def run(self) -> None:
        """What there is, then what comes behind it. A stream that breaks, and one whose beginning etcd has compacted,
        begins anew with what there is: nobody asks what was in between."""
        while not self._link.is_closed:
            try:
                seen = self._look()
                for answer in changes(self._link, self._keys, seen + 1):
                    if answer.header.revision > seen:
                        if self._pauses:
                            self._link.pause()
                        seen = self._look()
            except StoreError as error:
                if not self._link.is_closed:
                    LOG.warning("%s: %s", self._what, error)
            except Exception:  # whoever is told may fail, and has to be told again
                LOG.exception("%s: what has changed is not understood", self._what)
            self._link.pause()


def changes(link: EtcdLink, keys: pb.RangeRequest, revision: int) -> Iterator[pb.WatchResponse]:
    """Those with events, from a revision on, until the stream ends."""
    asked = pb.WatchCreateRequest(key=keys.key, range_end=keys.range_end, start_revision=revision)
    for answer in link.watched(pb.WatchRequest(create_request=asked), ANSWER_S):
        if answer.canceled:
            return
        if answer.events:
            yield answer


def keys_of(first: str, prefix: str) -> pb.RangeRequest:
    """All that begin with `prefix`, from `first` on."""
    begin = prefix.encode()
    return pb.RangeRequest(key=first.encode(), range_end=begin[:-1] + bytes([begin[-1] + 1]))


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
