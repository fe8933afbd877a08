"""A session whose client is away and that owes it nothing, as small as it can be kept.

A million of them are held in memory from the start on, so here bytes count: the numbers stand in one packed text, one
subscription stands alone rather than in a tuple, and neither is looked at by the garbage collector.
"""

from __future__ import annotations

from struct import Struct as Packing
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from embermq.model.client_type import ClientType
from embermq.model.session import SessionRow
from embermq.mqtt.topics.names import SHARE_PREFIX
from embermq.sessions.quotas import Account, kept_bytes
from embermq.sessions.session import Session

if TYPE_CHECKING:
    from embermq.routing.router import Subscriber

_NUMBERS = Packing("<QQQQQIIB")
"""Generation, expires_ms, created_ms, queue_seq_next, queue_dropped_seq, epoch, expiry_interval_s, version."""

FILTERS_MAX = 100
"""A session with more subscriptions stays loaded: to load it and put it away again takes time for each of them, and
what it takes besides them is little."""


class AbsentSession(Struct, eq=False, gc=False):
    """Stands for a `Session` in the trie and by its client id. A kept DEVICE session; its user is that of the account,
    where it goes on to count."""

    client_id: str
    certificate: str
    account: Account
    numbers: bytes
    subscribers: Subscriber | tuple[Subscriber, ...]
    is_loaded: ClassVar[bool] = False

    @property
    def generation(self) -> int:
        return int(_NUMBERS.unpack(self.numbers)[0])

    @property
    def expires_ms(self) -> int:
        return int(_NUMBERS.unpack(self.numbers)[1])

    @property
    def subscriptions(self) -> tuple[Subscriber, ...]:
        found = self.subscribers
        return found if isinstance(found, tuple) else (found,)


def put_away(session: Session) -> AbsentSession:
    """What is kept of a session while it `is_idle`. Its subscriptions name what stands for it from now on."""
    assert session.account is not None
    assert session.account.user == session.username
    numbers = _NUMBERS.pack(
        session.generation,
        session.expires_ms,
        session.created_ms,
        session.queue_seq_next,
        session.queue_dropped_seq,
        session.epoch,
        session.expiry_interval_s,
        session.version,
    )
    subscribers = tuple(session.subscriptions.values())
    absent = AbsentSession(
        session.client_id,
        session.certificate,
        session.account,
        numbers,
        subscribers[0] if len(subscribers) == 1 else subscribers,
    )
    for subscriber in subscribers:
        subscriber.holder = absent
    return absent


def row_of(absent: AbsentSession) -> SessionRow:
    """The row that is stored of an absent session."""
    generation, expires_ms, created_ms, _, _, epoch, expiry_s, version = _NUMBERS.unpack(absent.numbers)
    return SessionRow(
        absent.client_id,
        generation,
        epoch,
        ClientType.DEVICE,
        absent.account.user,
        version,
        expiry_s,
        False,
        expires_ms,
        created_ms,
        absent.certificate,
    )


def take_out(absent: AbsentSession) -> Session:
    """The session again. Its subscriptions name it from now on."""
    session = Session(row_of(absent), persistent=True)
    session.account = absent.account
    session.queue_seq_next, session.queue_dropped_seq = _NUMBERS.unpack(absent.numbers)[3:5]
    for subscriber in absent.subscriptions:
        subscriber.holder = session
        name = subscriber.name
        session.subscriptions[name] = subscriber
        session.subscription_bytes += kept_bytes(name)
    return session


def is_idle(session: Session) -> bool:
    """Whether nothing of it would be lost: its client is away, and nothing is owed to it or begun with it. And whether
    it is worth it."""
    return (
        session.link is None
        and session.claimant is None
        and session.persistent
        and session.client_type is ClientType.DEVICE
        and not session.dead
        and not session.client_id.startswith(SHARE_PREFIX)
        and len(session.subscriptions) <= FILTERS_MAX
        and not session.queued
        and not session.queue_filters
        and not (session.receiving or session.reserved or session.window)
        and not (session.waiting or session.resend or session.unsent)
    )
