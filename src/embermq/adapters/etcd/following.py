"""Watches of etcd that nobody has to begin anew."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from threading import Thread

from embermq.adapters.etcd import etcd_pb2 as pb
from embermq.adapters.etcd.link import EtcdLink
from embermq.ports.errors import StoreError

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
