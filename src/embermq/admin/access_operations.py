"""The part of the table about accounts, tokens, rules and settings, and about who writes rules of the pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embermq.admin import access_values as access
from embermq.admin import trail, values
from embermq.admin.access import Scope
from embermq.admin.operation import RowsOf
from embermq.admin.session_values import NoRequest

if TYPE_CHECKING:
    from embermq.admin.access_values import AccountDesk, PipelineRuleDesk, RuleDesk, SettingDesk, TokenDesk
    from embermq.admin.ban_desk import BanDesk
    from embermq.admin.trail import TrailDesk

READ, OPERATE, ADMIN = Scope.READ, Scope.OPERATE, Scope.ADMIN
ACCOUNTS, TOKENS, RULES, SETTINGS, BANS = "accounts", "tokens", "rules", "settings", "bans"
TRAIL, PIPELINE_RULES = "trail", "pipeline-rules"
"""Desks."""
_accounts: RowsOf[AccountDesk] = RowsOf(ACCOUNTS)
_tokens: RowsOf[TokenDesk] = RowsOf(TOKENS)
_rules: RowsOf[RuleDesk] = RowsOf(RULES)
_bans: RowsOf[BanDesk] = RowsOf(BANS)
_settings: RowsOf[SettingDesk] = RowsOf(SETTINGS)
_trail: RowsOf[TrailDesk] = RowsOf(TRAIL)
_pipeline_rules: RowsOf[PipelineRuleDesk] = RowsOf(PIPELINE_RULES)

LIST_ACCOUNTS = _accounts("ListAccounts", "GET /accounts", READ, "Accounts by name")(
    access.ListAccountsRequest,
    list[access.AccountView],
    lambda desk, asked: desk.page(asked),
    pages={"after": "name"},
)
ADD_ACCOUNT = _accounts(
    "AddAccount",
    "POST /accounts",
    ADMIN,
    "Make an account; without a password one is made and told this once",
)(
    access.AccountAsked,
    {201: access.MadePassword},
    lambda desk, asked: desk.add(asked),
    body=access.AccountAsked,
    needs_token=True,
    names=("name", "type", "scram"),
)
SET_PASSWORD = _accounts(
    "SetPassword",
    "PUT /accounts/{user}/password",
    ADMIN,
    "Change a password; without one it is made and told this once",
)(
    access.SetPasswordRequest,
    access.MadePassword,
    lambda desk, asked: desk.set_password(asked),
    about="Connections that were opened with the old one end within two seconds.",
    body=access.PasswordAsked,
    needs_token=True,
)
DISABLE_ACCOUNT = _accounts(
    "DisableAccount",
    "POST /accounts/{user}/disable",
    ADMIN,
    "Keep an account and refuse its logins; its connections end",
)(
    access.AccountRequest,
    None,
    lambda desk, asked: desk.set_disabled(asked.user, disabled=True),
    needs_token=True,
)
ENABLE_ACCOUNT = _accounts("EnableAccount", "POST /accounts/{user}/enable", ADMIN, "Enable an account again")(
    access.AccountRequest,
    None,
    lambda desk, asked: desk.set_disabled(asked.user, disabled=False),
    needs_token=True,
)
REMOVE_ACCOUNT = _accounts(
    "RemoveAccount", "DELETE /accounts/{user}", ADMIN, "Remove an account; its connections end"
)(access.AccountRequest, None, lambda desk, asked: desk.remove(asked.user), needs_token=True)

LIST_TOKENS = _tokens(
    "ListTokens", "GET /tokens", ADMIN, "Tokens of this API by name, without their secrets"
)(NoRequest, list[access.TokenView], lambda desk, _: desk.all(), needs_token=True)
CREATE_TOKEN = _tokens("CreateToken", "POST /tokens", ADMIN, "Make a token, which is told this once")(
    access.TokenAsked,
    {201: access.MadeToken},
    lambda desk, asked: desk.create(asked),
    body=access.TokenAsked,
    needs_token=True,
    names=("name", "scope", "expires", "certificate"),
)
REVOKE_TOKEN = _tokens("RevokeToken", "DELETE /tokens/{token}", ADMIN, "Revoke a token, by its name")(
    access.TokenRequest,
    None,
    lambda desk, asked: desk.revoke(asked.token),
    about="Without any token, programs on the broker's machine need none again.",
    needs_token=True,
)

LIST_BANS = _bans("ListBans", "GET /bans", READ, "Client ids, users and addresses that may not come in")(
    values.ListBansRequest,
    list[values.BanView],
    lambda desk, asked: desk.page(asked),
    pages={"after_kind": "kind", "after": "value"},
)
PUT_BAN = _bans(
    "PutBan",
    "PUT /bans/{kind}/{value}",
    OPERATE,
    "Ban a client id, a user, or an address or network, for a time or until that is lifted",
)(
    values.PutBanRequest,
    values.BanPut,
    lambda desk, asked: desk.put(asked),
    about="Those who are connected are sent away; their sessions stay. Bans are kept over restarts.",
    body=values.BanAsked,
    needs_token=True,
    names=("lasts", "reason"),
)
LIFT_BAN = _bans("LiftBan", "DELETE /bans/{kind}/{value}", OPERATE, "Lift a ban")(
    values.BanRequest, None, lambda desk, asked: desk.lift(asked), needs_token=True
)

LIST_RULES = _rules("ListRules", "GET /rules", READ, "Rules in the order in which they are asked")(
    NoRequest, access.RulesView, lambda desk, _: desk.all()
)
CHECK_RULES = _rules(
    "CheckRules", "POST /rules/check", READ, "Say whether a client may do something, by which rule, and why"
)(access.CheckRequest, access.Checked, lambda desk, asked: desk.check(asked), body=access.CheckRequest)

LIST_SETTINGS = _settings(
    "ListSettings",
    "GET /configuration",
    ADMIN,
    "Settings in force, where they come from, and which can be changed while the broker runs",
)(NoRequest, list[access.SettingView], lambda desk, _: desk.all())
CHANGE_SETTINGS = _settings(
    "ChangeSettings",
    "PATCH /configuration",
    ADMIN,
    "Change settings until the broker ends, all of those that are named or none",
)(
    access.ChangeSettingsRequest,
    list[access.SettingView],
    lambda desk, asked: desk.change(asked.settings),
    about="What is read at the start alone is refused by its name: it belongs into the file of settings.",
    body=access.ChangeSettingsRequest,
    needs_token=True,
    names=("settings",),
)

LIST_PIPELINE_RULES = _pipeline_rules(
    "ListPipelineRules", "GET /pipeline/rules", READ, "Rules of the pipeline, by name"
)(NoRequest, list[values.PipelineRuleView], lambda desk, _: desk.all())
PUT_PIPELINE_RULE = _pipeline_rules(
    "PutPipelineRule",
    "PUT /pipeline/rules/{rule}",
    Scope.RULES,
    "Write a rule of the pipeline, or another SQL for it",
)(
    values.PutPipelineRuleRequest,
    None,
    lambda desk, asked: desk.put(asked),
    about="The pipeline starts anew with it, which takes some seconds. Its status says whether Spark understands it.",
    body=values.PipelineRuleAsked,
    needs_token=True,
    names=("to", "queue", "every", "sql"),
)
REMOVE_PIPELINE_RULE = _pipeline_rules(
    "RemovePipelineRule",
    "DELETE /pipeline/rules/{rule}",
    Scope.RULES,
    "Remove a rule that was put over this API",
)(values.PipelineRuleRequest, None, lambda desk, asked: desk.remove(asked.rule), needs_token=True)

LIST_CHANGES = _trail(
    "ListChanges", "GET /audit", ADMIN, "The audit trail: who has changed what, newest first"
)(
    trail.ListChangesRequest,
    list[trail.ChangeView],
    lambda desk, asked: desk.page(asked),
    pages={"after": "id"},
    needs_token=True,
)
