"""Calls to an etcd: one member of it at a time, another one when that does not answer, with a token where it wants a
password."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from threading import Event, RLock
from typing import Any

import grpc

from embermq.adapters.etcd import etcd_pb2 as pb
from embermq.adapters.etcd.address import EtcdAddress
from embermq.ports.errors import StoreError, StoreUnavailable
from embermq.ports.store_address import tls_context
from embermq.ports.store_node import Node

LOG = logging.getLogger("embermq.etcd")
SERVICE = "/etcdserverpb."
RETRY_S = 0.2
"""How long a member that has refused is left alone, when there is no other."""
OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),  # no less than etcd's grpc-keepalive-min-time allows
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 32 * 1024 * 1024),  # all bans in one answer
)
HAS_LEADER = (("hasleader", "true"),)
"""A member that is cut off from the others ends the stream, instead of being silent."""
PASSES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
FAILURES = (grpc.RpcError, ValueError)
"""The second is what a channel says that another thread has closed meanwhile."""
OLD_TOKENS = ("invalid auth token", "revision of auth store is old")


class EtcdLink:
    """May be called from several threads. Raises ValueError for files of the address that cannot be used, before
    anything is asked. Calls raise StoreUnavailable when no member has answered in time, StoreError for what etcd
    refuses."""

    def __init__(self, address: EtcdAddress) -> None:
        self._address = address
        self._credentials = _credentials(address) if address.tls else None
        self._members: Iterator[Node] = cycle(address.nodes)
        self._lock = RLock()
        self._channel: Any = None
        self._token = ""
        self._closed = Event()

    def call(self, name: str, request: Any, answer: Any, timeout_s: float) -> Any:
        """One question, one answer. It is asked again while it is not answered, so it may be done more than once."""
        ends_s = time.monotonic() + timeout_s
        while True:
            channel = self._open()
            left_s = max(0.001, ends_s - time.monotonic())
            # A member that hangs leaves time for another one.
            once_s = left_s if len(self._address.nodes) == 1 else max(left_s / 2, min(left_s, RETRY_S))
            ask = channel.unary_unary(SERVICE + name, type(request).SerializeToString, answer.FromString)
            try:
                return ask(request, timeout=once_s, metadata=self._metadata(channel, once_s))
            except FAILURES as error:
                self._failed(channel, error)
                if time.monotonic() + RETRY_S >= ends_s or self._closed.wait(RETRY_S):
                    raise StoreUnavailable(f"{self._address}: {_told(error)}") from None

    def renewed(self, request: pb.LeaseKeepAliveRequest, timeout_s: float) -> pb.LeaseKeepAliveResponse:
        """The one answer of a stream on which one question is asked; asked once."""
        channel = self._open()
        ask = channel.stream_stream(
            SERVICE + "Lease/LeaseKeepAlive",
            pb.LeaseKeepAliveRequest.SerializeToString,
            pb.LeaseKeepAliveResponse.FromString,
        )
        try:
            stream = ask(
                iter([request]),
                timeout=timeout_s,
                metadata=(*self._metadata(channel, timeout_s), *HAS_LEADER),
            )
            for found in stream:
                return found  # type: ignore[no-any-return]
        except FAILURES as error:
            self._failed(channel, error)
            raise StoreUnavailable(f"{self._address}: {_told(error)}") from None
        raise StoreUnavailable(f"{self._address}: ends a renewal without an answer")

    def watched(self, request: pb.WatchRequest, timeout_s: float) -> Iterator[pb.WatchResponse]:
        """Answers until the stream breaks, which ends it. `timeout_s` is for logging in."""
        channel = self._open()
        ask = channel.stream_stream(
            SERVICE + "Watch/Watch", pb.WatchRequest.SerializeToString, pb.WatchResponse.FromString
        )

        def asked() -> Iterator[pb.WatchRequest]:
            yield request
            self._closed.wait()  # the stream is open as long as more could be asked

        try:
            yield from ask(asked(), metadata=(*self._metadata(channel, timeout_s), *HAS_LEADER))
        except FAILURES as error:
            self._failed(channel, error)

    def close(self) -> None:
        """End calls that are under way, and the connection; nothing is asked afterwards."""
        self._closed.set()
        with self._lock:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def pause(self) -> bool:
        """Wait a moment; whether it is closed now."""
        return self._closed.wait(RETRY_S)

    def _open(self) -> Any:
        with self._lock:
            if self._closed.is_set():
                raise StoreUnavailable(f"{self._address}: is closed")
            if self._channel is None:
                member, self._token = str(next(self._members)), ""
                self._channel = (
                    grpc.insecure_channel(member, OPTIONS)
                    if self._credentials is None
                    else grpc.secure_channel(member, self._credentials, OPTIONS)
                )
            return self._channel

    def _metadata(self, channel: Any, timeout_s: float) -> tuple[tuple[str, str], ...]:
        """A token, where there is a password. Raises grpc.RpcError."""
        if not self._address.username:
            return ()
        with self._lock:
            if not self._token:
                request = pb.AuthenticateRequest(name=self._address.username, password=self._address.password)
                ask = channel.unary_unary(
                    SERVICE + "Auth/Authenticate",
                    pb.AuthenticateRequest.SerializeToString,
                    pb.AuthenticateResponse.FromString,
                )
                self._token = ask(request, timeout=timeout_s).token
            return (("token", self._token),)

    def _failed(self, channel: Any, error: Any) -> None:
        """Make ready to ask again. Raises StoreError for what would be refused again."""
        if isinstance(error, ValueError):
            return
        text = error.details() or ""
        with self._lock:
            if any(one in text for one in OLD_TOKENS):
                self._token = ""
                return
            if self._channel is channel:
                self._channel = None
        channel.close()
        if error.code() not in PASSES:
            raise StoreError(f"{self._address}: {_told(error)}") from None


def _told(error: Any) -> str:
    """In etcd's words, or gRPC's."""
    if isinstance(error, ValueError):
        return "the connection has just been closed"
    text = (error.details() or "").removeprefix("etcdserver: ")
    return f"{error.code().name.lower().replace('_', ' ')}: {text[:200]}"


def _credentials(address: EtcdAddress) -> Any:
    """Raises ValueError, naming the option, when a file cannot be used. gRPC would only say so much later, and less."""
    context = tls_context(address, "cluster.etcd")
    roots = "".join(map(ssl.DER_cert_to_PEM_cert, context.get_ca_certs(binary_form=True)))
    own = Path(address.cert_file).read_bytes() if address.cert_file else None
    return grpc.ssl_channel_credentials(roots.encode() or None, own, own)
