"""Who may enter and do what, and the settings: what is asked of it. Implemented in app, by what commands use too.

Each raises NotFound, OperationRefused, RequestRefused, and StoreError when its store does not answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from embermq.admin.access_values import (
    AccountAsked,
    AccountView,
    Checked,
    CheckRequest,
    ListAccountsRequest,
    MadePassword,
    MadeToken,
    RulesView,
    SetPasswordRequest,
    SettingView,
    TokenAsked,
    TokenView,
)
from embermq.admin.pipeline_rule_values import PipelineRuleView, PutPipelineRuleRequest


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
