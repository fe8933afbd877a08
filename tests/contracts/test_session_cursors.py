"""What every store of cursors promises."""

from __future__ import annotations

import pytest
from tests.contracts.stores import Stores

from embermq.model.session_cursor import NOTHING_QUEUED, OPEN_MAX, SessionCursor, cursor_of, entry_of


@pytest.mark.promise("repositories-2", "repositories-3")
def test_a_cursor_is_what_the_newest_tick_said(stores: Stores) -> None:
    assert stores.cursors.load() == {}
    stores.write(cursors={1: SessionCursor(5), 2: SessionCursor(2**31 + 1, (7, 2**32 + 3))})
    stores.write(cursors={1: SessionCursor(9, (2,)), 3: SessionCursor(2**62)})
    stores.write(cursors={3: None, 4: None})
    expected = {1: SessionCursor(9, (2,)), 2: SessionCursor(2**31 + 1, (7, 2**32 + 3))}
    stores.reopen()
    assert stores.cursors.load() == expected


@pytest.mark.promise("repositories-3")
def test_a_cursor_with_all_that_it_may_name(stores: Stores) -> None:
    cursor = cursor_of(NOTHING_QUEUED, [entry_of(2**61 + number, shared=False) for number in range(OPEN_MAX)])
    assert len(cursor.open) == OPEN_MAX
    stores.write(cursors={1: cursor})
    stores.reopen()
    assert stores.cursors.load() == {1: cursor}


@pytest.mark.promise("repositories-4")
def test_session_data_is_complete_to_the_floor_that_was_written_with_it(stores: Stores) -> None:
    from tests.contracts.test_tick_store import session

    stores.write(sessions=[session(1)])
    (before,) = stores.sessions.load().sessions
    assert before.complete_to is None
    stores.write(dispatcher_floor=2**31 + 1)
    stores.reopen()
    state = stores.sessions.load()
    assert [entry.complete_to for entry in state.sessions] == [state.dispatcher_floor] == [2**31 + 1]
