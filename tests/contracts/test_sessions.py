"""What every session store promises."""

from __future__ import annotations

import msgspec
import pytest
from tests.contracts.stores import Stores

from embermq.formats.log_record import encode_record
from embermq.model.client_type import ClientType
from embermq.model.message import Message
from embermq.model.session import NEVER_EXPIRES, SessionRow, SubscriptionRow, WillRow
from embermq.ports.sessions import StoredState

ANN = SessionRow(
    "ann", 7, 3, ClientType.DEVICE, "user ä", 5, NEVER_EXPIRES, True, 0, 1_700_000_000_123, "CN=ann,O=Wörks"
)
BOB = SessionRow("bob/{}%'🦊", 2**40, 1, ClientType.APPLICATION, "", 3, 60, False, 2**42, 0)

GONE = WillRow("gone", 0, b"other", 2**41, "its user", "CN=its certificate")
RECORD = encode_record(Message("a", b"", 1, False, "p", 4, 1))


def test_an_empty_store_is_an_empty_state(stores: Stores) -> None:
    state = stores.sessions.load()
    assert (list(state.sessions), len(state.sessions)) == ([], 0)
    assert msgspec.structs.replace(state, sessions=[]) == StoredState(generation_reserved=1)
    assert stores.sessions.load_retained() == []


@pytest.mark.promise("repositories-1", "repositories-9")
def test_load_returns_what_ticks_left(stores: Stores) -> None:
    subscriptions = [
        SubscriptionRow("a/+/#", 2, 0, 0),
        SubscriptionRow("$share/g/a", 1 | 4 | 8 | 32, 268_435_455, 2**40),
    ]
    stores.write(
        sessions=[ANN, BOB],
        subscriptions=[(ANN.generation, row.topic_filter, row) for row in subscriptions],
        wills=[(ANN.generation, WillRow("ann", 5, b"will", 0)), (3, GONE)],
        generation_reserved=2**40 + 1_000,
        dispatcher_floor=0,
    )
    stores.write(records=[RECORD, RECORD], receiving=[(ANN.generation, 1, 0), (ANN.generation, 65_535, 1)])
    stores.reopen()
    state = stores.sessions.load()
    bob, ann = state.sessions  # the newest first
    assert (ann.row, bob.row) == (ANN, BOB)
    assert sorted(ann.subscriptions, key=lambda row: row.topic_filter, reverse=True) == subscriptions
    assert sorted(ann.receiving) == [1, 65_535]
    assert (bob.subscriptions, bob.receiving, bob.queued) == ((), (), 0)
    assert state.wills == [
        (3, GONE),
        (ANN.generation, WillRow("ann", 5, b"will", 0)),
    ]
    assert state.generation_reserved == 2**40 + 1_000
    assert state.log_end == 2


def test_the_last_word_counts(stores: Stores) -> None:
    away = msgspec.structs.replace(ANN, epoch=4, connected=False, expires_ms=9)
    first, second = SubscriptionRow("f", 0, 0, 0), SubscriptionRow("f", 2, 9, 5)
    stores.write(
        sessions=[ANN, away],
        subscriptions=[(7, "f", first), (7, "f", None), (7, "f", second), (7, "g", first), (7, "g", None)],
        wills=[(7, WillRow("ann", 0, b"1")), (7, None), (7, WillRow("ann", 1, b"2")), (8, None)],
    )
    (stored,) = stores.sessions.load().sessions
    assert stored.row == away
    assert stored.subscriptions == (second,)
    assert stores.sessions.load().wills == [(7, WillRow("ann", 1, b"2"))]


@pytest.mark.promise("repositories-7")
def test_nothing_of_a_deleted_session_is_left(stores: Stores) -> None:
    stores.write(
        records=[RECORD],
        sessions=[ANN, BOB],
        subscriptions=[(7, "f", SubscriptionRow("f", 0, 0, 0))],
        receiving=[(7, 1, 0)],
    )
    stores.write(deleted_sessions=[7])
    state = stores.sessions.load()
    assert [stored.row for stored in state.sessions] == [BOB]
    stores.write(sessions=[ANN])
    _, session = stores.sessions.load().sessions
    assert (session.subscriptions, session.receiving) == ((), ())


def test_generations_of_one_client_are_told_apart(stores: Stores) -> None:
    newer = msgspec.structs.replace(ANN, generation=8)
    stores.write(sessions=[newer, ANN], subscriptions=[(8, "f", SubscriptionRow("f", 1, 0, 0))])
    stored = stores.sessions.load().sessions
    assert [entry.row.generation for entry in stored] == [8, 7]
    assert [len(entry.subscriptions) for entry in stored] == [1, 0]
