"""`queues.file`: what it may say, and how what it may not say is refused."""

from pathlib import Path

import pytest

from embermq.app.config import load_configuration
from embermq.app.errors import ConfigError
from embermq.app.queue_file import read_queue_file
from embermq.queues.settings import Ordering, Overflow

TOML = """
[[queues]]
name = "tasks/images"
partitions = 4
retry_policy.max_retries = 3

[[queues]]
name = "users"
ordering = "strict"
[queues.limits]
overflow = "drop-head"
message_ttl = "90s"
"""


def written(folder: Path, text: str, name: str = "queues.toml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_toml_and_json_say_the_same(tmp_path: Path) -> None:
    images, users = read_queue_file(written(tmp_path, TOML))
    assert (images.name, images.partitions, images.retry_policy.max_retries) == ("tasks/images", 4, 3)
    assert (users.ordering, users.partitions) == (Ordering.STRICT, 1)
    assert users.limits.overflow is Overflow.DROP_HEAD
    assert str(users.limits.message_ttl) == "90s"
    json = """{"queues": [
        {"name": "$queue/tasks/images", "partitions": 4, "retry_policy": {"max_retries": 3}},
        {"name": "users", "ordering": "strict", "limits": {"overflow": "drop-head", "message_ttl": "90s"}}]}"""
    assert read_queue_file(written(tmp_path, json, "queues.json")) == (images, users)
    assert read_queue_file(written(tmp_path, "")) == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[queues]]\npartitions = 3", "queue 1 of 1 has no name"),
        ('[[queues]]\nname = "a"\n[[queues]]\nname = "a"', "queue a stands there twice"),
        ('[[queues]]\nname = "a"\n[[queues]]\nname = "$queue/a"', "queue a stands there twice"),
        ('[[queues]]\nname = "a"\ncolour = "red"', "settings of queue a: colour: there is no such setting"),
        ('[[queues]]\nname = "a"\npartitions = 0', "settings of queue a: partitions: "),
        ('[[queues]]\nname = "a"\nlimits.message_ttl = 5', "limits.message_ttl: "),
        ('[[queues]]\nname = "a"\nordering = "strict"\npartitions = 2', "partitions: is 2"),
        ('[[queues]]\nname = "a//b"', "has an empty level"),
        ('[[queues]]\nname = "responses/a"', "names below responses/"),
        ('[queue."a"]\npartitions = 2', "there is nothing but [[queues]]"),
        ("queues = 3", "queues is no list of tables"),
        ("[[queues]\n", "is no valid TOML"),
    ],
)
def test_refusals_name_the_queue_and_the_setting(tmp_path: Path, text: str, told: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_configuration(assignments=[f"queues.file={path}"])
    (problem,) = caught.value.problems
    assert problem.startswith(f"queues.file: {path}") and told in problem, problem
    assert problem.endswith("(from --set)")


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nothing\.toml: No such file"):
        load_configuration(assignments=[f"queues.file={tmp_path}/nothing.toml"])
    with pytest.raises(ConfigError, match="is no valid JSON"):
        load_configuration(assignments=[f"queues.file={written(tmp_path, '{', 'queues.json')}"])
    with pytest.raises(ConfigError, match="too deep"):
        load_configuration(assignments=[f"queues.file={written(tmp_path, '[' * 99_999, 'queues.json')}"])


def test_more_queues_than_there_may_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has 2 queues, queues\.queues_max is 1"):
        load_configuration(assignments=[f"queues.file={written(tmp_path, TOML)}", "queues.queues_max=1"])


def test_the_broker_s_own_settings_of_queues() -> None:
    found = load_configuration(assignments=["queues.join_debounce_ms=0", "queues.dedup_window_ms=500"])
    assert found.settings.queues.join_debounce_ms == 0
    assert found.settings.queues.idle_expiry_ms == 7 * 24 * 3_600_000
    with pytest.raises(
        ConfigError, match=r"queues\.disconnect_grace_ms: -1 is less than the smallest allowed 0"
    ):
        load_configuration(assignments=["queues.disconnect_grace_ms=-1"])
