"""Rules that are written over the API: kept over starts, and only where this broker has the pipeline."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from embermq.admin.errors import NotFound, OperationRefused, RequestRefused
from embermq.admin.values import PutPipelineRuleRequest
from embermq.app.config import Settings, load_configuration
from embermq.app.errors import ConfigError
from embermq.app.pipeline_rules import PipelineRules
from embermq.app.stored_rules import FILE_NAME
from embermq.cluster.settings import ClusterSettings
from embermq.pipeline.rules.settings import check_rules

SQL = "SELECT topic, payload FROM messages"
CONFIGURED = {"rules.own.sql": ("--set", SQL)}


def settings_in(data_dir: Path) -> Settings:
    options: dict[str, tuple[str, object]] = {"data_dir": ("--data-dir", str(data_dir)), **CONFIGURED}
    return load_configuration(options=options).settings


def service() -> Mock:
    return Mock(has_pipeline=True, check_rules=check_rules)


def put(desk: PipelineRules, rule: str, **said: object) -> None:
    asyncio.run(desk.put(PutPipelineRuleRequest(**{"rule": rule, "sql": SQL} | said)))  # type: ignore[arg-type]


def shown(desk: PipelineRules) -> list[tuple[str, str, bool]]:
    return [(one.name, one.sql, one.is_of_api) for one in desk.all()]


def test_what_is_put_holds_at_once_and_after_every_start(tmp_path: Path) -> None:
    broker = service()
    desk = PipelineRules(settings_in(tmp_path), broker)
    put(desk, "hot", every="1m", to="queue", queue="q")
    rules = broker.renew_rules.call_args.args[0]
    assert set(rules) == {"hot", "own"} and (rules["hot"].every_s, rules["hot"].topic) == (60, "$queue/q")
    found = settings_in(tmp_path)
    assert found.rules == rules
    desk = PipelineRules(found, broker)
    put(desk, "hot", sql="SELECT 1")
    assert shown(desk) == [("hot", "SELECT 1", True), ("own", SQL, False)]
    assert settings_in(tmp_path).rules["hot"].sql == "SELECT 1"
    asyncio.run(desk.remove("hot"))
    assert set(broker.renew_rules.call_args.args[0]) == {"own"}
    assert set(settings_in(tmp_path).rules) == {"own"}


def test_a_rule_of_the_configuration_is_changed_there(tmp_path: Path) -> None:
    broker = service()
    desk = PipelineRules(settings_in(tmp_path), broker)
    with pytest.raises(OperationRefused, match="own is in the configuration"):
        put(desk, "own")
    with pytest.raises(OperationRefused, match="own is in the configuration"):
        asyncio.run(desk.remove("own"))
    with pytest.raises(NotFound):
        asyncio.run(desk.remove("other"))
    with pytest.raises(RequestRefused, match="every = '1s'"):
        put(desk, "hot", every="1s")
    with pytest.raises(RequestRefused, match="the name of a rule"):
        put(desk, "Hot")
    broker.renew_rules.assert_not_called()
    assert not (tmp_path / FILE_NAME).exists()


def test_a_cluster_and_a_broker_without_a_pipeline_take_none(tmp_path: Path) -> None:
    settings, broker = settings_in(tmp_path), service()
    with pytest.raises(OperationRefused, match="in a cluster"):
        put(PipelineRules(replace(settings, cluster=ClusterSettings(etcd="etcd://x:1")), broker), "hot")
    broker.has_pipeline = False
    with pytest.raises(OperationRefused, match="does not run in this broker"):
        put(PipelineRules(settings, broker), "hot")


def test_a_file_that_says_something_else_is_told(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("{")
    with pytest.raises(ConfigError, match=f"written over the API: .*{FILE_NAME}"):
        settings_in(tmp_path)
