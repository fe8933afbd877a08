"""The message log in SQLite and session data in a store of its own, as one set of stores for the contract suites."""

from __future__ import annotations

from pathlib import Path

from tests.contracts.stores import Reading, Stores
from tests.support.held_sessions import HeldSessions

from embermq.adapters.sqlite.sessions import SqliteSessionStore
from embermq.delivery.direct.path import DirectPath
from embermq.durability.settings import SessionStoreSettings
from embermq.durability.split.completion import behind_log
from embermq.durability.split.store import SplitStore
from embermq.model.session import RetainedRow
from embermq.model.tick_writes import TickWrites
from embermq.ports.errors import StoreError
from embermq.ports.sessions import SessionStore, StoredState
from embermq.ports.tick_store import Receipt
from embermq.sessions.settings import MqttSettings
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Tick


class _Settling(Reading):
    """The held store is told to answer."""

    def __init__(self, sessions: HeldSessions) -> None:
        super().__init__(sessions)
        self._sessions = sessions

    def _settle(self) -> None:
        self._sessions.answer()


class _Both(SessionStore):
    """Session data with what the log's file says of the log."""

    def __init__(self, sessions: HeldSessions, log: SessionStore) -> None:
        self._sessions = sessions
        self._log = log

    def load(self) -> StoredState:
        return behind_log(self._sessions.load(), self._log.load())

    def load_retained(self) -> list[RetainedRow]:
        return self._sessions.load_retained()


class SplitStores(Stores):
    """See the module."""

    def __init__(self, folder: Path) -> None:
        super().__init__("os", folder)

    def _open(self) -> None:
        super()._open()
        self.held = held = HeldSessions(self.folder / "sessions.db")
        held.numbers_rows = False
        self.state = BrokerState(MqttSettings(), Tick(), DirectPath(), DirectPath())
        log = SqliteSessionStore(self.writer)
        self.state.log_end = log.load().log_end
        self.sessions = _Both(held, log)
        self.queue = _Settling(held)
        self.history = held.history
        closing = self._closing
        self._closing = [*closing[:-1], self._close_split]
        self.store = SplitStore(self.store, held, self.state, SessionStoreSettings(), self.posted.put)

    def _close_split(self) -> None:
        self.store.close()

    def submit(self, writes: TickWrites) -> list[Receipt | StoreError]:
        answers: list[Receipt | StoreError] = []

        def logged(answer: Receipt | StoreError) -> None:
            answers.append(answer)
            if isinstance(answer, Receipt):
                self.state.log_end = answer.base_offset + answer.record_count

        self.store.submit(writes, logged)
        return answers

    def answer(self) -> None:
        """The log's answer, then the session store's, then what the log was still owed."""
        super().answer()
        self.held.answer()
        while self.store.owes and not self.store.busy:
            self.submit(TickWrites())
            super().answer()

    def write(self, **writes: object) -> Receipt:
        receipt = super().write(**writes)
        return Receipt(receipt.base_offset, receipt.record_count)
