"""Accounts, tokens, rules and settings for operators, by what commands use too: see `admin.access_values`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from heapq import nsmallest
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from embermq.access.authorization.rule_set import RuleSet
from embermq.access.authorization.rules import GUARDED, ON_CLIENT_IDS, Action, Principal
from embermq.admin.access import ApiToken
from embermq.admin.access_values import (
    AccountAsked,
    AccountView,
    Checked,
    CheckRequest,
    ListAccountsRequest,
    MadePassword,
    MadeToken,
    PasswordAsked,
    RulesView,
    RuleView,
    SetPasswordRequest,
    SettingView,
    TokenAsked,
    TokenView,
)
from embermq.admin.errors import NotFound, OperationRefused, RequestRefused
from embermq.app.accounts import Accounts
from embermq.app.api_tokens import TokenFile, expires_ms_of
from embermq.app.authorization import may_connect, rule_document, topic_asked
from embermq.app.config import Configuration
from embermq.app.errors import OptionError, StartError, UserError
from embermq.model.client_type import ClientType
from embermq.model.moments import iso_s
from embermq.mqtt.topics.errors import TopicError
from embermq.observability.settings import LoggingSettings
from embermq.ports.errors import StoreError
from embermq.ports.store_url import without_password
from embermq.ports.users import User

if TYPE_CHECKING:  # commands use the other desks
    from embermq.sessions.state import BrokerState

Answer = TypeVar("Answer")
LEVEL = "logging.level"
LIVE = frozenset({LEVEL})
"""Settings that can be changed while the broker runs: nothing has taken a decision by them."""
ON_SESSION = "say the client id whose session it is"


@contextmanager
def refusing() -> Iterator[None]:
    """What commands say as errors of theirs, in the words of the table."""
    try:
        yield
    except OptionError as error:
        raise RequestRefused(str(error)) from None
    except UserError as error:
        raise OperationRefused(str(error)) from None
    except (OSError, StartError) as error:
        raise StoreError(str(error)) from error


class AccountsAsked:
    """Accounts are asked and changed on threads, one after another: a password takes its time and memory."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._turn = _Turn()

    async def page(self, asked: ListAccountsRequest) -> Sequence[AccountView]:
        def look() -> Sequence[AccountView]:
            users = self._accounts.all()
            fit = (user for user in users if user.name > asked.after and fnmatchcase(user.name, asked.match))
            return [_account(user) for user in nsmallest(asked.limit, fit, key=lambda user: user.name)]

        return await self._turn.do(look)

    async def add(self, asked: AccountAsked) -> MadePassword:
        add = partial(
            self._accounts.add,
            asked.name,
            _bytes_of(asked),
            ClientType[asked.type.upper()],
            scram=asked.scram,
        )
        return _made(asked.name, await self._turn.do(add))

    async def set_password(self, asked: SetPasswordRequest) -> MadePassword:
        await self._find(asked.user)
        change = partial(
            self._accounts.set_password,
            asked.user,
            _bytes_of(asked),
            scram=asked.scram,
        )
        return _made(asked.user, await self._turn.do(change))

    async def set_disabled(self, user: str, *, disabled: bool) -> None:
        await self._find(user)
        await self._turn.do(partial(self._accounts.set_disabled, user, disabled=disabled))

    async def remove(self, user: str) -> None:
        await self._find(user)
        await self._turn.do(partial(self._accounts.remove, user))

    async def _find(self, user: str) -> None:
        try:
            await self._turn.do(partial(self._accounts.find, user))
        except OperationRefused as error:
            raise NotFound(str(error)) from None


class _Turn:
    """Files are read and written on a thread, one call after the other."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def do(self, what: Callable[[], Answer]) -> Answer:
        """Raises OperationRefused for what the user can do something about, StoreError."""
        async with self._lock:
            with refusing():
                return await asyncio.to_thread(what)


class TokensAsked:
    """The file is written on a thread."""

    def __init__(self, data_dir: Path) -> None:
        self._file = TokenFile(data_dir)
        self._turn = _Turn()

    async def all(self) -> Sequence[TokenView]:
        found = await self._turn.do(self._file.all)
        return [_token(token) for _, token in sorted(found.items())]

    async def create(self, asked: TokenAsked) -> MadeToken:
        with refusing():
            expires_ms = expires_ms_of(asked.expires, time.time_ns() // 1_000_000)
        create = partial(self._file.create, asked.name, asked.scope, expires_ms, asked.certificate)
        return MadeToken(name=asked.name, token=await self._turn.do(create))

    async def revoke(self, name: str) -> None:
        if name not in await self._turn.do(self._file.all):
            raise NotFound(f"there is no token {name[:80]!r}")
        await self._turn.do(partial(self._file.revoke, name))


class RulesAsked:
    """Of the rules that clients are judged by now."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def all(self) -> RulesView:
        settings, rules = self._state.authorization, self._state.rules
        if rules is None:
            return RulesView(files=(), rules=(), no_match_allows=True)
        shown = [
            msgspec.convert({**rule_document(rule), "told": str(rule)}, RuleView) for rule in rules.rules
        ]
        files = [file for file in (settings.rules, settings.mosquitto_acl) if file]
        return RulesView(files=files, rules=shown, no_match_allows=rules.no_match_allows)

    def check(self, asked: CheckRequest) -> Checked:
        rules, action = self._state.rules, asked.action
        principal = Principal(asked.user, asked.client_id, asked.certificate)
        topic = self._topic(asked)
        if rules is None and topic.startswith(GUARDED):
            rules = RuleSet((), no_match_allows=True)
        if rules is None:
            return Checked(allowed=True, rule=None, why="there are no rules: everybody may do everything")
        if action is Action.CONNECT:
            session = self._state.sessions.get(asked.client_id)
            owner = session.username if session is not None else ""
            note = "there is no session of this client id"
            if session is not None:
                note = f"its session belongs to {owner or 'no user'}"
            found = may_connect(rules, principal, owner, note)
        else:
            found = rules.decide(principal, action, topic)
        place = str(found.rule.place) if found.rule is not None else None
        return Checked(allowed=found.allowed, rule=place, why=found.why)

    def _topic(self, asked: CheckRequest) -> str:
        if asked.action in ON_CLIENT_IDS:
            if not asked.client_id or asked.topic:
                raise RequestRefused(f"client_id: with the action {asked.action} {ON_SESSION}, and no topic")
            return ""
        try:
            return topic_asked(asked.action, asked.topic)
        except TopicError as error:
            raise RequestRefused(f"topic: {error}") from None


class SettingsAsked:
    """`found` is what the broker was started with."""

    def __init__(self, found: Configuration) -> None:
        self._found = found
        self._changed: dict[str, object] = {}

    def all(self) -> Sequence[SettingView]:
        return [
            SettingView(
                key=one.key,
                value=_plain(self._changed.get(one.key, one.value)),
                origin="API" if one.key in self._changed else one.origin,
                is_live=one.key in LIVE,
            )
            for one in self._found.effective()
        ]

    def change(self, settings: Mapping[str, object]) -> Sequence[SettingView]:
        known = {one.key for one in self._found.effective()}
        for key in settings:
            if key not in known:
                raise RequestRefused(f"{key[:80]}: there is no such setting")
            if key not in LIVE:
                raise OperationRefused(
                    f"{key}: is read at the start of the broker alone; {', '.join(LIVE)} can be changed"
                )
        try:
            level = msgspec.convert({"level": settings.get(LEVEL, "info")}, LoggingSettings).level
        except msgspec.ValidationError as error:
            raise RequestRefused(f"{LEVEL}: {error}") from None
        if LEVEL in settings:
            logging.getLogger().setLevel(level.upper())
        self._changed |= settings
        return [one for one in self.all() if one.key in settings]


def _bytes_of(asked: PasswordAsked) -> bytes | None:
    """None for one that is to be made. What a terminal or a file has that is no UTF-8 stays what it is."""
    return asked.password.encode(errors="surrogateescape") or None


def _account(user: User) -> AccountView:
    return AccountView(
        name=user.name,
        type=user.client_type.name.lower(),
        disabled=user.disabled,
        scram=bool(user.scram),
        created=iso_s(user.created_ms),
    )


def _token(token: ApiToken) -> TokenView:
    return TokenView(
        name=token.name,
        scope=token.scope.value,
        created=iso_s(token.created_ms),
        expires=iso_s(token.expires_ms) if token.expires_ms else None,
        certificate=token.certificate,
    )


def _made(name: str, password: str) -> MadePassword:
    return MadePassword(name=name, password=password) if password else MadePassword(name=name)


def _plain(value: object) -> object:
    """As JSON has it, addresses without passwords."""
    found: object = msgspec.to_builtins(value)
    return without_password(found) if isinstance(found, str) and "://" in found else found
