"""Accounts are read off the event loop, for many clients at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice

from embermq.access.authentication.gate import Visitor
from embermq.access.authentication.step import Deny
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.ports.errors import StoreError
from embermq.ports.users import NAMES_MAX, User, Users

CANNOT_READ = "the accounts cannot be read"
HAS_LEFT = Deny(ReasonCode.SERVER_UNAVAILABLE, "it disconnected before its account was read")
_Found = asyncio.Future[User | Deny | None]


class AccountLookups:
    """Looks names up. Who asks during a read shares the next one: a restart with thousands of clients is a few reads,
    also where accounts are on a server.

    It has no limit of its own: each client asks once, and `clients.connections_max` limits those. Who leaves asks no
    more: while a server hangs, any number may come and leave.
    """

    def __init__(self, users: Users) -> None:
        self._users = users
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="accounts")
        self._asking: dict[_Found, str] = {}
        self._reading: asyncio.Task[None] | None = None

    async def find(self, name: str, visitor: Visitor) -> User | Deny | None:
        """The account as it is after this call, None when there is none; Deny when accounts cannot be read."""
        found: _Found = asyncio.get_running_loop().create_future()
        self._asking[found] = name
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read())
        if visitor.left is None:
            return await found
        leave = partial(self._leave, found)
        visitor.left.add_done_callback(leave)
        try:
            return await found
        finally:
            visitor.left.remove_done_callback(leave)

    def _leave(self, found: _Found, _left: asyncio.Future[None]) -> None:
        self._asking.pop(found, None)
        if not found.done():
            found.set_result(HAS_LEFT)

    async def _read(self) -> None:
        try:
            while self._asking:
                turn = dict(islice(self._asking.items(), NAMES_MAX))
                for found in turn:
                    del self._asking[found]
                await self._answer(turn)
        finally:
            self._reading = None

    async def _answer(self, turn: Mapping[_Found, str]) -> None:
        """Whatever goes wrong is for those who asked to hear."""
        names = frozenset(turn.values())
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
        for waiting, name in turn.items():
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
