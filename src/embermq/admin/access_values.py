"""Accounts, tokens, rules and settings: what is asked of whom (implemented in app), and what that takes and answers.

Who may enter and do what, and the settings: what is asked of it. Implemented in app, by what commands use too. Each
raises NotFound, OperationRefused, RequestRefused, and StoreError when its store does not answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Protocol

from msgspec import UNSET, Meta, Struct, UnsetType

from embermq.access.authorization.rules import Action
from embermq.admin.access import Scope
from embermq.admin.values import PipelineRuleView, PutPipelineRuleRequest


class AccountDesk(Protocol):
    """Accounts of clients. A change ends within two seconds the connections of those who entered with what holds no
    more."""

    async def page(self, asked: ListAccountsRequest) -> Sequence[AccountView]:
        """A page of accounts in the order of their names, as `asked` limits it."""
        ...

    async def add(self, asked: AccountAsked) -> MadePassword:
        """Returns when it is stored."""
        ...

    async def set_password(self, asked: SetPasswordRequest) -> MadePassword:
        """Returns when it is stored."""
        ...

    async def set_disabled(self, user: str, *, disabled: bool) -> None:
        """Returns when it is stored."""
        ...

    async def remove(self, user: str) -> None:
        """Returns when it is stored."""
        ...


class TokenDesk(Protocol):
    """Tokens of this API."""

    async def all(self) -> Sequence[TokenView]: ...

    async def create(self, asked: TokenAsked) -> MadeToken:
        """Returns when it is stored."""
        ...

    async def revoke(self, name: str) -> None:
        """Returns when it is stored: the next request with it is refused."""
        ...


class RuleDesk(Protocol):
    """Rules of clients, which are written in files."""

    def all(self) -> RulesView: ...

    def check(self, asked: CheckRequest) -> Checked:
        """What they say, and why."""
        ...


class PipelineRuleDesk(Protocol):
    """Rules of the pipeline."""

    def all(self) -> Sequence[PipelineRuleView]: ...

    async def put(self, asked: PutPipelineRuleRequest) -> None:
        """Returns when it is stored, and will hold after every start."""
        ...

    async def remove(self, name: str) -> None:
        """The same."""
        ...


class SettingDesk(Protocol):
    """Settings of the broker."""

    def all(self) -> Sequence[SettingView]: ...

    def change(self, settings: Mapping[str, object]) -> Sequence[SettingView]:
        """Until the broker ends; returns those that were changed. All or none."""
        ...


ACCOUNTS_MAX = 1_000
"""Of a page."""
TEXT_MAX = 65_535

ClientKind = Literal["device", "application"]
Text = Annotated[str, Meta(max_length=TEXT_MAX)]


class AccountView(Struct, frozen=True, kw_only=True):
    """An account; `scram` tells whether it may log in so as well. Times are ISO 8601 in UTC."""

    name: str
    type: str
    disabled: bool
    scram: bool
    created: str


class ListAccountsRequest(Struct, frozen=True, kw_only=True):
    """A page of accounts."""

    after: Annotated[str, Meta(description="Names behind this one")] = ""
    limit: Annotated[int, Meta(ge=1, le=ACCOUNTS_MAX)] = ACCOUNTS_MAX
    match: Annotated[str, Meta(max_length=300, description="Shell wildcards over names")] = "*"


class AccountRequest(Struct, frozen=True, kw_only=True):
    """Asks for one account by its name."""

    user: Text


class PasswordAsked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A password; "" has one made. `scram`: the account may log in by SCRAM too."""

    password: Text = ""
    scram: bool = False

    def __repr__(self) -> str:
        """Without the password, so that no log can hold it."""
        return f"{type(self).__name__}()"


class AccountAsked(PasswordAsked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An account that is to be made, with its first password and its type of client."""

    name: Text
    type: ClientKind = "device"


class SetPasswordRequest(PasswordAsked, frozen=True, kw_only=True):
    """A new password for an account."""

    user: Text


class MadePassword(Struct, frozen=True, kw_only=True):
    """The password of the account `name`, where it was made here: nobody can read it again."""

    name: str
    password: str | UnsetType = UNSET

    def __repr__(self) -> str:
        """Without it."""
        return f"MadePassword(name={self.name!r})"


class TokenView(Struct, frozen=True, kw_only=True):
    """A token without its secret; `certificate` is the name in a certificate that stands for it."""

    name: str
    scope: str
    created: str
    expires: str | None
    certificate: str


class TokenAsked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new token; `expires` is a duration, such as 12h or 30d, "" for ever."""

    name: str
    scope: Scope = Scope.READ
    expires: str = ""
    certificate: str = ""


class TokenRequest(Struct, frozen=True, kw_only=True):
    """Asks for one token of the API by its name."""

    token: str


class MadeToken(Struct, frozen=True, kw_only=True):
    """The token, which nobody can read again; "" where a certificate stands for it."""

    name: str
    token: str

    def __repr__(self) -> str:
        """Without the token."""
        return f"MadeToken(name={self.name!r})"


class RuleView(Struct, frozen=True, kw_only=True):
    """A rule, where it is written, and in words. What is None does not matter to it."""

    place: str
    told: str
    allow: bool
    actions: Sequence[str]
    use_server: str | None
    moved_to: str | None
    anonymous: bool | None
    user: str | None
    client_id: str | None
    certificate: str | None
    topics: Sequence[str] | None
    topic_regex: str | None


class RulesView(Struct, frozen=True, kw_only=True):
    """The rules in force, in the order in which they are asked, and the answer where none matches. `files` are none
    where everybody may do everything."""

    files: Sequence[str]
    rules: Sequence[RuleView]
    no_match_allows: bool


class CheckRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """May this client do that? `user` is "" for an anonymous one. With the action `connect` the topic is "", and the
    session of the client id counts."""

    action: Action
    topic: Text = ""
    user: Text = ""
    client_id: Text = ""
    certificate: Text = ""


class Checked(Struct, frozen=True, kw_only=True):
    """The answer, and why; `rule` is the place of the one that gave it."""

    allowed: bool
    rule: str | None
    why: str


class SettingView(Struct, frozen=True, kw_only=True):
    """A setting in force, without passwords, and where it was given. `is_live`: it can be changed while the broker
    runs; the others are read at its start."""

    key: str
    value: object
    origin: str
    is_live: bool


class ChangeSettingsRequest(Struct, frozen=True, kw_only=True):
    """New values by key."""

    settings: Mapping[str, object]
