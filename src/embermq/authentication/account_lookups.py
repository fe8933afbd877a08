"""Accounts are read off the event loop, for many clients at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from embermq.authentication.step import Deny
from embermq.ports.errors import StoreError
from embermq.ports.users import NAMES_MAX, User, Users
from embermq.protocol.reason_codes import ReasonCode

CANNOT_READ = "the accounts cannot be read"
_Found = asyncio.Future[User | Deny | None]


class AccountLookups:
    """Looks names up. Who asks during a read shares the next one: a restart with thousands of clients is a few reads,
    also where accounts are on a server.

    It has no limit of its own: each client asks once, and `clients.connections_max` limits those.
    """

    def __init__(self, users: Users) -> None:
        self._users = users
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="accounts")
        self._asking: list[tuple[str, _Found]] = []
        self._reading: asyncio.Task[None] | None = None

    async def find(self, name: str) -> User | Deny | None:
        """The account as it is after this call, None when there is none; Deny when accounts cannot be read."""
        found: _Found = asyncio.get_running_loop().create_future()
        self._asking.append((name, found))
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read())
        return await found

    async def _read(self) -> None:
        try:
            while self._asking:
                turn, self._asking = self._asking[:NAMES_MAX], self._asking[NAMES_MAX:]
                await self._answer(turn)
        finally:
            self._reading = None

    async def _answer(self, turn: list[tuple[str, _Found]]) -> None:
        """Whatever goes wrong is for those who asked to hear."""
        names = frozenset(name for name, _ in turn)
        answers: Mapping[str, User | Deny] = {}
        failure: Exception | None = None
        try:
            answers = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._users.find_many, names
            )
        except StoreError as error:
            answers = dict.fromkeys(names, Deny(ReasonCode.SERVER_UNAVAILABLE, f"{CANNOT_READ}: {error}"))
        except Exception as error:
            failure = error
        for name, waiting in turn:
            if waiting.done():  # its connection has ended meanwhile
                continue
            if failure is not None:
                waiting.set_exception(failure)
            else:
                waiting.set_result(answers.get(name))

    async def close(self) -> None:
        """Let a read that is under way finish; nobody may ask any more."""
        if self._reading is not None:
            self._reading.cancel()
            with suppress(asyncio.CancelledError):
                await self._reading
        self._thread.shutdown(wait=True, cancel_futures=True)
