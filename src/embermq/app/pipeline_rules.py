"""Rules of the pipeline for operators: those of the configuration are shown, those of the API written."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from embermq.admin.errors import NotFound, OperationRefused, RequestRefused
from embermq.admin.values import PipelineRuleView, PutPipelineRuleRequest
from embermq.app.config import Settings
from embermq.app.stored_rules import store_rules, stored_rules
from embermq.pipeline.errors import PipelineSettingsError
from embermq.pipeline.rules.settings import RuleSettings
from embermq.ports.errors import StoreError

if TYPE_CHECKING:
    from embermq.app.service import BrokerService

Rules = Mapping[str, RuleSettings]
IN_A_CLUSTER = (
    "in a cluster rules belong into the configuration of every node: another one would not know them"
)
NO_PIPELINE = (
    "the pipeline does not run in this broker: rules belong into the configuration of the one that has it"
)


class RulesShown:
    """Those of the settings, in which rules that were put stand too."""

    def __init__(self, settings: Settings) -> None:
        self._rules: Rules = settings.rules
        self._written: Rules = {
            name: rule for name, rule in settings.rules.items() if name in _of_api(settings)
        }

    def all(self) -> Sequence[PipelineRuleView]:
        return [
            PipelineRuleView(
                name=name,
                sql=rule.sql,
                to=rule.to,
                target=rule.queue or rule.shown_url or rule.table or rule.to,
                queue=rule.queue,
                every=rule.every,
                over=rule.over,
                qos=rule.qos,
                sees_rules=rule.sees_rules,
                is_of_api=name in self._written,
            )
            for name, rule in sorted(self._rules.items())
        ]


class PipelineRules(RulesShown):
    """The file is written on a thread, one change after the other."""

    def __init__(self, settings: Settings, service: BrokerService) -> None:
        super().__init__(settings)
        self._data_dir = Path(settings.data_dir)
        self._is_in_cluster = bool(settings.cluster.etcd)
        self._service = service
        self._turn = asyncio.Lock()

    async def put(self, asked: PutPipelineRuleRequest) -> None:
        said = msgspec.to_builtins(asked)
        name = said.pop("rule")
        async with self._turn:
            self._refuse_where_it_cannot_be(name)
            rule = RuleSettings(**said)
            await self._change({**self._written, name: rule}, {**self._rules, name: rule})

    async def remove(self, name: str) -> None:
        async with self._turn:
            if name not in self._rules:
                raise NotFound(f"there is no rule {name[:80]!r}")
            self._refuse_where_it_cannot_be(name)
            written = {one: rule for one, rule in self._written.items() if one != name}
            await self._change(written, {one: rule for one, rule in self._rules.items() if one != name})

    def _refuse_where_it_cannot_be(self, name: str) -> None:
        if self._is_in_cluster:
            raise OperationRefused(IN_A_CLUSTER)
        if not self._service.has_pipeline:
            raise OperationRefused(NO_PIPELINE)
        if name in self._rules and name not in self._written:
            raise OperationRefused(f"the rule {name} is in the configuration, and is changed there")

    async def _change(self, written: Rules, rules: Rules) -> None:
        try:
            self._service.check_rules(rules)
        except PipelineSettingsError as error:
            raise RequestRefused(str(error)) from None
        try:
            await asyncio.to_thread(store_rules, self._data_dir, written)
        except OSError as error:
            raise StoreError(f"rules cannot be stored: {error}") from error
        self._written, self._rules = written, rules
        self._service.renew_rules(rules)


def _of_api(settings: Settings) -> Rules:
    """Those that a file of the data directory has; the configuration comes first."""
    found = stored_rules(Path(settings.data_dir))
    return {name: rule for name, rule in found.items() if settings.rules.get(name) == rule}
