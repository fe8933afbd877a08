"""Settings of a queue: defaults, refusals by name, what may change while it holds messages."""

import json
from typing import Any

import pytest

from embermq.queues.errors import SettingsRefused
from embermq.queues.settings import check_change, format_settings, parse_settings

DEFAULTS: dict[str, Any] = {
    "name": "tasks/images",
    "partitions": 10,
    "ordering": "partition",
    "retry_policy": {
        "max_retries": 10,
        "initial_backoff": "5s",
        "max_backoff": "5m",
        "backoff_multiplier": 2.0,
        "total_timeout": "3h",
        "nack_delay": "first-immediate",
    },
    "dlq_config": {"enabled": True, "topic": "$queue/dlq/<name>", "alert_webhook": None},
    "limits": {
        "max_message_size": 1048576,
        "max_queue_depth": 100000,
        "message_ttl": "168h",
        "overflow": "reject",
        "ttl_action": "drop",
    },
    "performance": {"delivery_timeout": "30s", "batch_size": 1, "prefetch": 32},
}


def test_names_and_defaults() -> None:
    settings = parse_settings("tasks/images", b"{}")
    assert json.loads(format_settings(settings)) == DEFAULTS
    assert settings.dead_letter_queue == "dlq/tasks/images"
    assert parse_settings("dlq/tasks", b"{}").dead_letter_queue == ""
    assert parse_settings("tasks", b'{"dlq_config": {"enabled": false}}').dead_letter_queue == ""


def test_what_is_written_is_read() -> None:
    given = {
        "ordering": "strict",
        "retry_policy": {"max_retries": 0, "initial_backoff": "250ms", "nack_delay": "backoff"},
        "dlq_config": {"topic": "$queue/dlq/all", "alert_webhook": "https://alerts.example/x"},
        "limits": {"overflow": "drop-head", "ttl_action": "dlq", "message_ttl": "90s"},
        "performance": {"prefetch": 1},
    }
    settings = parse_settings("q", json.dumps(given).encode())
    assert settings.partitions == 1
    assert settings.dead_letter_queue == "dlq/all"
    assert parse_settings("q", format_settings(settings)) == settings
    assert json.loads(format_settings(settings))["limits"]["message_ttl"] == "90s"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[]", "a JSON object is needed"),
        ("{", "no valid JSON"),
        ('{"partition": 3}', "queue q: partition: there is no such setting"),
        ('{"limits": {"depth": 3}}', "limits.depth: there is no such setting"),
        ('{"partitions": 0}', "partitions: is 0, expected `int` >= 1"),
        ('{"partitions": 1025}', "partitions: is 1025, expected `int` <= 1024"),
        ('{"partitions": "3"}', "partitions: is '3', expected `int`, got `str`"),
        ('{"partitions": true}', "partitions: is True, expected `int`, got `bool`"),
        ('{"ordering": "total"}', "ordering: invalid enum value 'total'"),
        ('{"ordering": "strict", "partitions": 2}', "partitions: is 2, ordering strict has 1"),
        ('{"name": "p"}', "name: is 'p'"),
        ('{"dlq_config": "https://u:secret@a"}', "dlq_config: is 'https://u:***@a', expected `object`"),
        ('{"dlq_config": {"alert_webhook": 7}}', "dlq_config.alert_webhook: expected `str | null`"),
        (
            '{"retry_policy": {"initial_backoff": "5"}}',
            "retry_policy.initial_backoff: '5' is no duration such as",
        ),
        (
            '{"retry_policy": {"initial_backoff": 5}}',
            "retry_policy.initial_backoff: is 5, a duration is a text such as",
        ),
        (
            '{"retry_policy": {"initial_backoff": "6m"}}',
            "retry_policy.initial_backoff: 6m is more than max_backoff 5m",
        ),
        (
            '{"retry_policy": {"backoff_multiplier": 0.5}}',
            "retry_policy.backoff_multiplier: is 0.5, expected `float` >= 1",
        ),
        ('{"retry_policy": {"max_retries": -1}}', "retry_policy.max_retries: is -1, expected `int` >= 0"),
        (
            '{"retry_policy": {"total_timeout": "0s"}}',
            "retry_policy.total_timeout: is 0ms, must be more than 0",
        ),
        ('{"limits": {"overflow": "drop"}}', "limits.overflow: invalid enum value 'drop'"),
        (
            '{"performance": {"delivery_timeout": "0s"}}',
            "performance.delivery_timeout: is 0ms, must be more than 0",
        ),
        ('{"performance": {"prefetch": 65536}}', "performance.prefetch: is 65536, expected `int` <= 65535"),
        (
            '{"dlq_config": {"topic": "$queue/failed"}}',
            "dlq_config.topic: '$queue/failed' does not start with $queue/dlq/",
        ),
        (
            '{"dlq_config": {"topic": "$queue/dlq/"}}',
            "dlq_config.topic: queue name 'dlq/' has an empty level",
        ),
        (
            '{"dlq_config": {"alert_webhook": "ftp://a/b"}}',
            "dlq_config.alert_webhook: is not an address with",
        ),
        (
            '{"dlq_config": {"alert_webhook": "https:///b"}}',
            "dlq_config.alert_webhook: is not an address with",
        ),
        (
            '{"dlq_config": {"alert_webhook": "https://a:0/"}}',
            "dlq_config.alert_webhook: is not an address with",
        ),
        (
            r'{"dlq_config": {"alert_webhook": "https://a/b\r\nX: y"}}',
            "dlq_config.alert_webhook: is not an address with",
        ),
        (
            '{"dlq_config": {"alert_webhook": "https://user:pass@a/"}}',
            "dlq_config.alert_webhook: has a user name or password in it",
        ),
        (
            '{"dlq_config": {"alert_webhook": "https://a/' + "x" * 2_000 + '"}}',
            "dlq_config.alert_webhook: has 2010 characters, the limit is 2000",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(text: str, told: str) -> None:
    with pytest.raises(SettingsRefused) as refused:
        parse_settings("q", text.encode())
    assert told in str(refused.value)


def test_partitions_change_only_while_the_queue_is_empty() -> None:
    before, after = parse_settings("q", b"{}"), parse_settings("q", b'{"partitions": 4}')
    check_change(before, after, 0)
    check_change(before, parse_settings("q", b'{"limits": {"max_queue_depth": 5}}'), 3)
    with pytest.raises(
        SettingsRefused, match="partitions: 10 cannot become 4 while the queue holds 3 messages"
    ):
        check_change(before, after, 3)
    with pytest.raises(
        SettingsRefused, match="ordering: partition cannot become none while the queue holds 1"
    ):
        check_change(before, parse_settings("q", b'{"ordering": "none"}'), 1)
