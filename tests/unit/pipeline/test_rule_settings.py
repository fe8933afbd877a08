"""Rules in the configuration: what is refused by name, before any SQL is looked at."""

from pathlib import Path

import pytest

from embermq.app.config import load_configuration
from embermq.app.errors import ConfigError
from embermq.pipeline.errors import PipelineSettingsError
from embermq.pipeline.rules.settings import RULES_MAX, WINDOWS_MAX, RuleSettings, Stretch, check_rules

SQL = "SELECT topic, payload FROM messages"


def test_a_rule_has_a_table_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "ember.toml"
    file.write_text(
        f'[rules.hot]\nsql = "{SQL}"\nto = "queue"\nqueue = "work"\n\n[rules.cold]\nsql = "{SQL}"\n'
    )
    found = load_configuration(config_file=file, assignments=["rules.hot.qos=2"])
    assert found.settings.rules["hot"] == RuleSettings(sql=SQL, to="queue", queue="work", qos=2)
    assert found.settings.rules["hot"].topic == "$queue/work"
    shown = {item.key: (item.value, item.origin) for item in found.effective()}
    assert shown["rules.hot.qos"] == (2, "--set")
    assert shown["rules.cold.sql"] == (SQL, str(file))
    assert shown["rules.cold.to"] == ("mqtt", "default")


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        (
            '[rules.hot]\nsqll = "x"',
            r"unknown setting rules\.hot\.sqll .*line 2\); the nearest is rules\.hot\.sql",
        ),
        ('[rules.hot]\nto = "disk"', "rules.hot.to: 'disk' is not one of lake, mqtt, queue"),
        ("[rules]\nhot = 5", "unknown setting rules.hot"),
        ("[rules.hot]\nqos = 1", "rules.hot.sql: is missing"),
        (f'[rules.Hot]\nsql = "{SQL}"', "rules.Hot: the name of a rule has"),
    ],
)
def test_what_is_no_rule_is_refused_by_its_key(tmp_path: Path, toml: str, problem: str) -> None:
    file = tmp_path / "ember.toml"
    file.write_text(toml)
    with pytest.raises(ConfigError, match=problem):
        load_configuration(config_file=file)


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (RuleSettings(sql="x" * 20_000), "sql: has 20000 characters, more than the largest allowed 16384"),
        (RuleSettings(sql=SQL, queue="a"), "queue = 'a': is for to = \"queue\""),
        (RuleSettings(sql=SQL, table="t"), 'table: is for to = "sql"'),
        (RuleSettings(sql=SQL, to="sql", url_file="/u", table="a; b"), "must be NAME or SCHEMA.NAME"),
        (RuleSettings(sql=SQL, to="sql", table="a.b"), "needs the file with the URL of the server"),
        (RuleSettings(sql=SQL, to="queue"), "needs the name of a durable queue"),
        (RuleSettings(sql=SQL, to="queue", queue="a/+"), "queue = 'a/\\+': "),
        (RuleSettings(sql=SQL, tables=("messages=/d/a.csv",)), "'messages' is no name of a table"),
        (RuleSettings(sql=SQL, tables=("d=a.csv",)), "is not the absolute path of a file that ends in .csv"),
        (RuleSettings(sql=SQL, tables=("d=/etc/passwd",)), "is not the absolute path of a file that ends in"),
        (RuleSettings(sql=SQL, tables=("d=/a.csv", "d=/b.csv")), "a table is named twice"),
        (RuleSettings(sql=SQL, over="1h"), "over = '1h': is for a rule with `every`"),
        (RuleSettings(sql=SQL, every="9s"), "every = '9s': must be a time .* from 10 s to 86400 s"),
        (RuleSettings(sql=SQL, every="1d"), "every = '1d': must be a time"),
        (
            RuleSettings(sql=SQL, every="1m", over="30s"),
            "over = '30s': must be a time .* from 60 s to 3600 s",
        ),
        (RuleSettings(sql=SQL, every="1m", over="2h"), "over = '2h': must be a time .* from 60 s to 3600 s"),
        (RuleSettings(sql=SQL, every="1m", sees_rules=True), "sees no messages of rules"),
    ],
)
def test_what_no_rule_can_be(rule: RuleSettings, problem: str) -> None:
    with pytest.raises(PipelineSettingsError, match=problem):
        check_rules({"r": rule})


def test_there_is_a_limit_on_their_number() -> None:
    check_rules({f"r{number}": RuleSettings(sql=SQL) for number in range(RULES_MAX)})
    with pytest.raises(PipelineSettingsError, match=f"there are {RULES_MAX + 1}, {RULES_MAX} are allowed"):
        check_rules({f"r{number}": RuleSettings(sql=SQL) for number in range(RULES_MAX + 1)})
    windows = {f"r{number}": RuleSettings(sql=SQL, every="1m", over="1h") for number in range(WINDOWS_MAX)}
    check_rules(windows)
    with pytest.raises(PipelineSettingsError, match=f"{WINDOWS_MAX + 1} have `every`, {WINDOWS_MAX} may"):
        check_rules(windows | {"more": RuleSettings(sql=SQL, every="24h")})


def test_windows_follow_one_another_and_may_look_further_back() -> None:
    assert RuleSettings(sql=SQL, every="1m").stretch(600) == Stretch(540, 540, 600)
    assert RuleSettings(sql=SQL, every="1m", over="5m").stretch(600) == Stretch(300, 540, 600)
