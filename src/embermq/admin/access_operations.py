"""The part of the table about accounts, tokens, rules and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embermq.admin import access_values as access
from embermq.admin import ban_values as ban
from embermq.admin import trail
from embermq.admin.access import Scope
from embermq.admin.operation import RowsOf
from embermq.admin.session_values import NoRequest

if TYPE_CHECKING:
    from embermq.admin.access_desks import AccountDesk, RuleDesk, SettingDesk, TokenDesk
    from embermq.admin.ban_desk import BanDesk
    from embermq.admin.trail import TrailDesk

READ, OPERATE, ADMIN = Scope.READ, Scope.OPERATE, Scope.ADMIN
ACCOUNTS, TOKENS, RULES, SETTINGS, BANS = "accounts", "tokens", "rules", "settings", "bans"
TRAIL = "trail"
"""Desks."""
_accounts: RowsOf[AccountDesk] = RowsOf(ACCOUNTS)
_tokens: RowsOf[TokenDesk] = RowsOf(TOKENS)
_rules: RowsOf[RuleDesk] = RowsOf(RULES)
_bans: RowsOf[BanDesk] = RowsOf(BANS)
_settings: RowsOf[SettingDesk] = RowsOf(SETTINGS)
_trail: RowsOf[TrailDesk] = RowsOf(TRAIL)

LIST_ACCOUNTS = _accounts(
    "ListAccounts",
    "GET /accounts",
    READ,
    access.ListAccountsRequest,
    list[access.AccountView],
    do=lambda desk, asked: desk.page(asked),
    summary="Accounts by name",
    pages={"after": "name"},
)
ADD_ACCOUNT = _accounts(
    "AddAccount",
    "POST /accounts",
    ADMIN,
    access.AccountAsked,
    {201: access.MadePassword},
    do=lambda desk, asked: desk.add(asked),
    summary="Make an account; without a password one is made and told this once",
    body=access.AccountAsked,
    needs_token=True,
    names=("name", "type", "scram"),
)
SET_PASSWORD = _accounts(
    "SetPassword",
    "PUT /accounts/{user}/password",
    ADMIN,
    access.SetPasswordRequest,
    access.MadePassword,
    do=lambda desk, asked: desk.set_password(asked),
    summary="Change a password; without one it is made and told this once",
    about="Connections that were opened with the old one end within two seconds.",
    body=access.PasswordAsked,
    needs_token=True,
)
DISABLE_ACCOUNT = _accounts(
    "DisableAccount",
    "POST /accounts/{user}/disable",
    ADMIN,
    access.AccountRequest,
    None,
    do=lambda desk, asked: desk.set_disabled(asked.user, disabled=True),
    summary="Keep an account and refuse its logins; its connections end",
    needs_token=True,
)
ENABLE_ACCOUNT = _accounts(
    "EnableAccount",
    "POST /accounts/{user}/enable",
    ADMIN,
    access.AccountRequest,
    None,
    do=lambda desk, asked: desk.set_disabled(asked.user, disabled=False),
    summary="Enable an account again",
    needs_token=True,
)
REMOVE_ACCOUNT = _accounts(
    "RemoveAccount",
    "DELETE /accounts/{user}",
    ADMIN,
    access.AccountRequest,
    None,
    do=lambda desk, asked: desk.remove(asked.user),
    summary="Remove an account; its connections end",
    needs_token=True,
)

LIST_TOKENS = _tokens(
    "ListTokens",
    "GET /tokens",
    ADMIN,
    NoRequest,
    list[access.TokenView],
    do=lambda desk, _: desk.all(),
    summary="Tokens of this API by name, without their secrets",
    needs_token=True,
)
CREATE_TOKEN = _tokens(
    "CreateToken",
    "POST /tokens",
    ADMIN,
    access.TokenAsked,
    {201: access.MadeToken},
    do=lambda desk, asked: desk.create(asked),
    summary="Make a token, which is told this once",
    body=access.TokenAsked,
    needs_token=True,
    names=("name", "scope", "expires", "certificate"),
)
REVOKE_TOKEN = _tokens(
    "RevokeToken",
    "DELETE /tokens/{token}",
    ADMIN,
    access.TokenRequest,
    None,
    do=lambda desk, asked: desk.revoke(asked.token),
    summary="Revoke a token, by its name",
    about="Without any token, programs on the broker's machine need none again.",
    needs_token=True,
)

LIST_BANS = _bans(
    "ListBans",
    "GET /bans",
    READ,
    ban.ListBansRequest,
    list[ban.BanView],
    do=lambda desk, asked: desk.page(asked),
    summary="Client ids, users and addresses that may not come in",
    pages={"after_kind": "kind", "after": "value"},
)
PUT_BAN = _bans(
    "PutBan",
    "PUT /bans/{kind}/{value}",
    OPERATE,
    ban.PutBanRequest,
    ban.BanPut,
    do=lambda desk, asked: desk.put(asked),
    summary="Ban a client id, a user, or an address or network, for a time or until that is lifted",
    about="Those who are connected are sent away; their sessions stay. Bans are kept over restarts.",
    body=ban.BanAsked,
    needs_token=True,
    names=("lasts", "reason"),
)
LIFT_BAN = _bans(
    "LiftBan",
    "DELETE /bans/{kind}/{value}",
    OPERATE,
    ban.BanRequest,
    None,
    do=lambda desk, asked: desk.lift(asked),
    summary="Lift a ban",
    needs_token=True,
)

LIST_RULES = _rules(
    "ListRules",
    "GET /rules",
    READ,
    NoRequest,
    access.RulesView,
    do=lambda desk, _: desk.all(),
    summary="Rules in the order in which they are asked",
)
CHECK_RULES = _rules(
    "CheckRules",
    "POST /rules/check",
    READ,
    access.CheckRequest,
    access.Checked,
    do=lambda desk, asked: desk.check(asked),
    summary="Say whether a client may do something, by which rule, and why",
    body=access.CheckRequest,
)

LIST_SETTINGS = _settings(
    "ListSettings",
    "GET /configuration",
    ADMIN,
    NoRequest,
    list[access.SettingView],
    do=lambda desk, _: desk.all(),
    summary="Settings in force, where they come from, and which can be changed while the broker runs",
)
CHANGE_SETTINGS = _settings(
    "ChangeSettings",
    "PATCH /configuration",
    ADMIN,
    access.ChangeSettingsRequest,
    list[access.SettingView],
    do=lambda desk, asked: desk.change(asked.settings),
    summary="Change settings until the broker ends, all of those that are named or none",
    about="What is read at the start alone is refused by its name: it belongs into the file of settings.",
    body=access.ChangeSettingsRequest,
    needs_token=True,
    names=("settings",),
)

LIST_CHANGES = _trail(
    "ListChanges",
    "GET /audit",
    ADMIN,
    trail.ListChangesRequest,
    list[trail.ChangeView],
    do=lambda desk, asked: desk.page(asked),
    summary="The audit trail: who has changed what, newest first",
    pages={"after": "id"},
    needs_token=True,
)
