"""`embermq rules put` and `delete`, and `list` of a broker elsewhere: the rules that its API has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from embermq.admin import access_operations as ops
from embermq.admin.values import PutPipelineRuleRequest
from embermq.app.config import load_configuration
from embermq.app.pipeline_rules import PipelineRules
from embermq.cli import control
from embermq.cli.main import main
from embermq.pipeline.rules.settings import check_rules

SQL = "SELECT topic, payload FROM messages"


class Broker:
    """Asked by commands, as over its control socket or its API."""

    missing: tuple[str, ...] = ()

    def __init__(self, data_dir: Path) -> None:
        settings = load_configuration(options={"data_dir": ("--data-dir", str(data_dir))}).settings
        self.desk = PipelineRules(settings, Mock(has_pipeline=True, check_rules=check_rules))

    def ask(self, operation: object, **given: Any) -> Any:
        if operation is ops.PUT_PIPELINE_RULE:
            return asyncio.run(self.desk.put(msgspec.convert(given, PutPipelineRuleRequest)))
        if operation is ops.REMOVE_PIPELINE_RULE:
            return asyncio.run(self.desk.remove(given["rule"]))
        assert operation is ops.LIST_PIPELINE_RULES
        return msgspec.to_builtins(self.desk.all())


def test_rules_are_put_listed_and_deleted_as_over_the_api(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = Broker(tmp_path)

    @contextmanager
    def reached(*_: object) -> Iterator[Broker]:
        yield broker

    monkeypatch.setattr(control, "broker_elsewhere", reached)
    more = ["--to", "queue", "--queue", "hot", "--qos", "2", "--sees-rules"]
    assert main(["rules", "put", "hot", SQL, *more]) == 0
    assert main(["rules", "put", "mean", SQL, "--every", "1m", "--over", "5m"]) == 0
    capsys.readouterr()
    assert main(["rules", "list", "--json"]) == 0
    hot, mean = msgspec.json.decode(capsys.readouterr().out)
    rule = {"name": "hot", "sql": SQL, "to": "queue", "queue": "hot", "every": "", "over": ""}
    assert hot == rule | {"target": "hot", "qos": 2, "sees_rules": True, "is_of_api": True}
    assert (mean["to"], mean["every"], mean["over"], mean["qos"]) == ("mqtt", "1m", "5m", 1)
    assert main(["rules", "delete", "hot"]) == 0
    assert [one.name for one in broker.desk.all()] == ["mean"]


def test_rules_are_listed_without_a_broker_and_without_the_path_that_may_be_a_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "ember.toml"
    config.write_text(f"[rules.hook]\nsql = '{SQL}'\nto = 'webhook'\nurl = 'https://there.example/secret'\n")
    words = ["rules", "list", "--config", str(config), "--data-dir", str(tmp_path)]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "hook" in shown
    assert "https://there.example" in shown
    assert "secret" not in shown
    assert main([*words, "--json"]) == 0
    (hook,) = msgspec.json.decode(capsys.readouterr().out)
    assert (hook["name"], hook["to"], hook["is_of_api"]) == ("hook", "webhook", False)
    assert "secret" not in str(hook)
