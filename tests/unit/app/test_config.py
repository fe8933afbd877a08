"""The one schema: sources, precedence, refusals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embermq.app.config import Configuration, Settings, load_configuration, queue_settings
from embermq.app.errors import ConfigError, StartError
from embermq.app.store_addresses import kafka_address


def refused(
    *assignments: str, environment: Mapping[str, str] | None = None, config_file: Path | None = None
) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load_configuration(assignments=assignments, environment=environment, config_file=config_file)
    return caught.value.problems


def with_set(*assignments: str) -> Settings:
    return load_configuration(assignments=assignments).settings


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "ember.toml"
    path.write_text(
        """
        data_dir = "/srv/ember"
        [listeners]
        mqtt = ["127.0.0.1:0", "[::1]:0"]
        [clients]
        application_ids = ["billing-*"]
        [device]
        queue_limit = 1
        ttl_s = 1
        linger_ms = 1
        queue_bytes_max = 2000000
        """
    )
    return path


def test_nothing_given_gives_the_defaults() -> None:
    configuration = load_configuration()
    assert configuration.settings == Settings()
    assert configuration.origins == {}
    assert {setting.origin for setting in configuration.effective()} == {"default"}


def test_later_sources_win(toml: Path) -> None:
    configuration = load_configuration(
        config_file=toml,
        environment={
            "EMBERMQ_DEVICE__TTL_S": "2",
            "EMBERMQ_DEVICE__LINGER_MS": "2",
            "EMBERMQ_DEVICE__QUEUE_BYTES_MAX": "2000002",
            "PATH": "untouched",
        },
        assignments=[
            "device.linger_ms=3",
            "device.queue_bytes_max=2000003",
            "device.queue_bytes_max=2000004",
        ],
        options={"data_dir": ("--data-dir", "/elsewhere")},
    )
    device = configuration.settings.device
    assert (device.queue_limit, device.ttl_s, device.linger_ms, device.queue_bytes_max) == (
        1,
        2,
        3.0,
        2000004,
    )
    assert configuration.settings.data_dir == "/elsewhere"
    assert configuration.settings.listeners.mqtt == ("127.0.0.1:0", "[::1]:0")
    assert configuration.settings.clients.application_ids == ("billing-*",)
    assert configuration.origins == {
        "data_dir": "--data-dir",
        "listeners.mqtt": str(toml),
        "clients.application_ids": str(toml),
        "device.queue_limit": str(toml),
        "device.ttl_s": "EMBERMQ_DEVICE__TTL_S",
        "device.linger_ms": "--set",
        "device.queue_bytes_max": "--set",
    }


def test_the_data_directory_has_a_variable() -> None:
    assert load_configuration(environment={"EMBERMQ_DATA_DIR": "/srv"}).settings.data_dir == "/srv"


@pytest.mark.parametrize(
    ("text", "expected"), [("true", True), ("1", True), ("false", False), ("0", False), ("False", False)]
)
def test_text_is_read_as_true_or_false(text: str, expected: bool) -> None:
    assert with_set(f"clients.allow_anonymous={text}").clients.allow_anonymous is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("[]", ()),
        ("a-*", ("a-*",)),
        ("a-*, b-[0-9]", ("a-*", "b-[0-9]")),
        ("[ab]-*", ("[ab]-*",)),
        ('["a,b", "c"]', ("a,b", "c")),
    ],
)
def test_text_is_read_as_a_list(text: str, expected: tuple[str, ...]) -> None:
    assert with_set(f"clients.application_ids={text}").clients.application_ids == expected


def test_values_may_hold_an_equals_sign() -> None:
    assert with_set("data_dir=/a=b").data_dir == "/a=b"


@pytest.mark.parametrize(
    ("assignment", "problem"),
    [
        (
            "device.queue_limit=70000",
            "device.queue_limit: 70000 is more than the largest allowed 65535 (from --set)",
        ),
        ("device.queue_limit=0", "device.queue_limit: 0 is less than the smallest allowed 1 (from --set)"),
        ("device.queue_limit=many", "device.queue_limit: 'many' is not a whole number (from --set)"),
        ("device.queue_limit=1.5", "device.queue_limit: '1.5' is not a whole number (from --set)"),
        ("device.queue_limit=", "device.queue_limit: '' is not a whole number (from --set)"),
        ("log.retention_hours=nan", "log.retention_hours: 'nan' is not a number (from --set)"),
        ("log.retention_hours=inf", "log.retention_hours: 'inf' is not a number (from --set)"),
        ("application.ack_strategy=retry", "application.ack_strategy"),
        ("application.pack_timeout_s=0", "application.pack_timeout_s"),
        ("log.retention_hours=0", "log.retention_hours: 0.0 is not more than 0 (from --set)"),
        (
            "clients.allow_anonymous=maybe",
            "clients.allow_anonymous: 'maybe' is not true or false (from --set)",
        ),
        (
            "log.durability=fsink",
            "log.durability: 'fsink' is not one of fsync, memory, os; the nearest is fsync (from --set)",
        ),
        (
            "device.queue_limt=5",
            "unknown setting device.queue_limt (from --set); the nearest is device.queue_limit",
        ),
        (
            "clients.password_checks_max=2",
            "unknown setting clients.password_checks_max (from --set); the nearest is clients.connections_max",
        ),
        ("grpc.calls_max=5", "unknown setting grpc.calls_max (from --set); the nearest is "),
        (
            "pipeline.archive_pin_policy=refuse",
            "unknown setting pipeline.archive_pin_policy (from --set); the nearest is pipeline.pin_policies",
        ),
        (
            "pipeline.pin_policies=archive:refuse,archive:pause",
            "pipeline.pin_policies = ['archive:refuse', 'archive:pause']: a query is named twice",
        ),
        (
            "queues.dead_letters_share=0.2",
            "unknown setting queues.dead_letters_share (from --set); the nearest is ",
        ),
        ("pipeline.pin_policies=dispatch:pause", "pipeline.pin_policies: 'dispatch:pause' is not one of "),
        (
            "stores.session_anew=true",
            "unknown setting stores.session_anew (from --set); the nearest is stores.session",
        ),
        ("devise.ttl_s=5", "unknown setting devise.ttl_s (from --set); the nearest is device.ttl_s"),
        ("queue_limit=5", "unknown setting queue_limit (from --set); the nearest is device.queue_limit"),
        (
            "listeners.mqtt=1883",
            "listeners.mqtt: '1883' is not host:port, for example 127.0.0.1:1883 or [::1]:1883",
        ),
        ("data_dir= ", "data_dir: ' ' is not the name of a directory (from --set)"),
        ("data_dir", "--set data_dir: is not section.key=value"),
    ],
)
def test_what_cannot_be_is_refused_by_name(assignment: str, problem: str) -> None:
    problems = refused(assignment)
    assert len(problems) == 1
    assert problems[0].startswith(problem)


def test_a_section_is_no_setting() -> None:
    assert refused("device=5")[0].startswith(
        "device is a section, not a setting (from --set); it has device."
    )


def test_every_problem_is_told_at_once() -> None:
    assert len(refused("device.ttl_s=0", "log.durability=x", "nonsense.at_all=1")) == 3


def test_unknown_variables_are_refused() -> None:
    assert refused(environment={"EMBERMQ_DEVICE_QUEUE_LIMIT": "5"}) == (
        "unknown setting EMBERMQ_DEVICE_QUEUE_LIMIT in the environment; the nearest is EMBERMQ_DEVICE__QUEUE_LIMIT",
    )


def test_large_packets_need_a_large_heap_unless_there_is_no_pipeline() -> None:
    with_set("mqtt.packet_bytes_max=13000000")
    with_set("mqtt.packet_bytes_max=100000000", "pipeline.enabled=false")
    (problem,) = refused("mqtt.packet_bytes_max=100000000")
    assert "needs pipeline.heap_mb of at least 3815, it is 512" in problem


def test_a_queue_may_have_as_many_messages_as_there_are_packet_ids() -> None:
    assert with_set("device.queue_limit=65535", "mqtt.inflight_max=65535").device.queue_limit == 65_535


def test_a_wait_for_replicas_ends_before_patience_with_the_connection() -> None:
    with_set("redis.wait_replicas=1", "redis.command_timeout_s=0.6")
    with_set("redis.command_timeout_s=0.5")
    (problem,) = refused("redis.wait_replicas=1", "redis.command_timeout_s=0.5")
    assert problem.startswith("redis.command_timeout_s: 0.5 is not more than 500 ms, which one WAIT")


@pytest.mark.promise("device-6")
@pytest.mark.parametrize(("limit", "stored"), [(65_535, 64_511), (64_511, 64_511), (500, 500)])
def test_the_window_counts_within_the_limit_of_the_queue(limit: int, stored: int) -> None:
    """In Redis both need packet ids: together they have no more than there are."""
    asked = (f"device.queue_limit={limit}", "mqtt.inflight_max=1024")
    assert queue_settings(with_set(*SERVERS, *asked)).queue_limit == stored
    assert queue_settings(with_set(*asked)).queue_limit == limit


def test_queue_and_window_share_the_packet_ids_in_redis() -> None:
    with_set(*SERVERS, "device.queue_limit=5535", "mqtt.inflight_max=60000")
    environment = {"EMBERMQ_MQTT__INFLIGHT_MAX": "60000"}
    (problem,) = refused(*SERVERS, "device.queue_limit=5536", environment=environment)
    assert problem.startswith(
        "device.queue_limit: 5536 has to be more than mqtt.inflight_max, 60000, since they are"
    )
    assert "device.queue_limit from --set" in problem
    assert "mqtt.inflight_max from EMBERMQ_MQTT__INFLIGHT_MAX" in problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("device = 5", "device: is a section, written [device]"),
        ("[device]\nttl_s = true", "device.ttl_s: True is not a whole number"),
        ("[device]\nttl_s = 1.5", "device.ttl_s: 1.5 is not a whole number"),
        ("[device]\nttl_s = '5'", "device.ttl_s: '5' is not a whole number"),
        ("[device]\nttl_s = [5]", "device.ttl_s: [5] is not a whole number"),
        ("[log]\nretention_hours = inf", "log.retention_hours: inf is not a number that can be used"),
        ("[clients]\napplication_ids = [1]", "clients.application_ids: 1 is not a text"),
        ("[listeners]\nmqtt = 1883", "listeners.mqtt: 1883 is not a list of texts"),
        ("[devise]\nttl_s = 5", "unknown setting devise.ttl_s"),
        ("[devise]", "unknown setting devise"),
        ("[data_dir]\nx = 1", "data_dir: {'x': 1} is not a text"),
        ("[device", "ember.toml is not valid TOML"),
    ],
)
def test_a_file_is_refused_by_name(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "ember.toml"
    path.write_text(text)
    (told,) = refused(config_file=path)
    assert problem in told
    assert "ember.toml" in told


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    (problem,) = refused(config_file=tmp_path / "none.toml")
    assert "none.toml: No such file" in problem


def test_a_file_that_is_not_text_is_told(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(b"\xff\xfe")
    assert "is not valid TOML" in refused(config_file=path)[0]


def test_an_empty_section_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ember.toml"
    path.write_text("[device]\n[log]\n")
    assert load_configuration(config_file=path).settings == Settings()


def test_every_setting_can_be_given_back_as_text() -> None:
    """What `check-config` shows is what `--set` takes."""
    shown: Configuration = load_configuration()
    for setting in shown.effective():
        value = setting.value
        text = ",".join(value) if isinstance(value, tuple) else str(value)
        assert with_set(f"{setting.key}={text}") == shown.settings, setting.key


def problems_of(assignment: str, environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """What is refused; nothing when the settings are valid. Any other error fails the test."""
    try:
        load_configuration(assignments=[assignment], environment=environment)
    except ConfigError as error:
        return error.problems
    return ()


@given(key=st.text(max_size=40), value=st.text(max_size=40))
def test_no_text_makes_anything_but_settings_or_a_refusal(key: str, value: str) -> None:
    for problem in problems_of(f"{key}={value}", {f"EMBERMQ_{key}": value}):
        assert problem


@given(
    key=st.sampled_from([setting.key for setting in load_configuration().effective()]),
    value=st.text(max_size=20) | st.integers().map(str) | st.floats().map(str) | st.just("null"),
)
def test_no_value_makes_anything_but_settings_or_a_refusal(key: str, value: str) -> None:
    for problem in problems_of(f"{key}={value}"):
        assert key in problem


def test_a_listener_has_a_table_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "ember.toml"
    path.write_text(
        """
        [listeners]
        mqtts = ["0.0.0.0:8883", "[::]:8883"]
        [tls]
        cert = "server.pem"
        [listener."0.0.0.0:8883"]
        min_version = "1.3"
        proxy_protocol = true
        """
    )
    keys = ['listener."[::]:8883".allow_anonymous=false', "listener.0.0.0.0:8883.client_type=application"]
    configuration = load_configuration(config_file=path, assignments=keys)
    assert configuration.settings.listener == {
        "0.0.0.0:8883": {"min_version": "1.3", "proxy_protocol": True, "client_type": "application"},
        "[::]:8883": {"allow_anonymous": False},
    }
    assert {key: origin for key, origin in configuration.origins.items() if key.startswith("listener.")} == {
        'listener."0.0.0.0:8883".min_version': str(path),
        'listener."0.0.0.0:8883".proxy_protocol': str(path),
        'listener."0.0.0.0:8883".client_type': "--set",
        'listener."[::]:8883".allow_anonymous': "--set",
    }
    shown = {setting.key: setting.value for setting in configuration.effective()}
    assert shown['listener."0.0.0.0:8883".min_version'] == "1.3"


@pytest.mark.parametrize(
    ("assignment", "problem"),
    [
        (
            "listener.127.0.0.1:1883.prox_protocol=true",
            'unknown setting listener.127.0.0.1:1883.prox_protocol (from --set); the nearest is listener."127.0',
        ),
        (
            "listener.mqtt=127.0.0.1:1",
            "unknown setting listener.mqtt (from --set); the nearest is listeners.mqtt",
        ),
        (
            "listener.127.0.0.1:1883.allow_anonymous=maybe",
            "listener.\"127.0.0.1:1883\".allow_anonymous: 'maybe' is not true or false (from --set)",
        ),
        (
            "listener.127.0.0.1:1.proxy_protocol=true",
            'listener."127.0.0.1:1": no listener has this address; there is 127.0.0.1:1883',
        ),
        (
            "listeners.mqtts=127.0.0.1:1",
            "listeners.mqtts: needs tls.cert, the server's certificate (from --set)",
        ),
        ("listeners.ws=127.0.0.1:1883", "listeners.ws: 127.0.0.1:1883 is named twice, in listeners.mqtt too"),
        ("listeners.http=unix:/x", "listeners.http: 'unix:/x'"),
        ("listeners.grpc=9090", "listeners.grpc: '9090' is not host:port"),
        ("listeners.grpc=127.0.0.1:8080", "listeners.grpc: 127.0.0.1:8080 is named twice, in listeners.http"),
        ("listeners.mqtt=unix:", "listeners.mqtt: 'unix:' is not unix:/path"),
        ("listeners.mqtt=unix:/" + "x" * 107, "listeners.mqtt: 'unix:/"),
    ],
)
def test_what_is_wrong_with_a_listener_is_told_by_name(assignment: str, problem: str) -> None:
    (told,) = refused(assignment)
    assert told.startswith(problem)


REDIS = "stores.session=redis://h"
SERVERS = ("stores.log=kafka://h", REDIS)
SECRET_URL = "postgresql://ann:hidden@db.example.com/data"


def test_the_password_of_a_store_is_shown_nowhere() -> None:
    found = load_configuration(assignments=[f"stores.static={SECRET_URL}"])
    assert found.settings.stores.static == SECRET_URL
    shown = {setting.key: setting.value for setting in found.effective()}
    assert shown["stores.static"] == "postgresql://ann:***@db.example.com/data"
    assert "hidden" not in f"{found.settings!r} {found.shown!r} {shown} {found.settings.stores}"
    found = load_configuration(assignments=["stores.log=kafka://ann:hidden@h", REDIS])
    shown = {setting.key: setting.value for setting in found.effective()}
    assert shown["stores.log"] == "kafka://ann:***@h"
    assert "hidden" not in f"{found.settings!r} {found.shown!r} {shown} {found.settings.stores}"


@pytest.mark.parametrize(
    ("alone", "problem"),
    [
        (
            "stores.log=kafka://ann:hidden@h",
            "stores.session: sqlite does not go with stores.log = kafka://ann:***@h: ",
        ),
        (
            "stores.session=redis://ann:hidden@h",
            "stores.log: sqlite does not go with stores.session = redis://ann:***@h: ",
        ),
    ],
)
def test_one_server_without_the_other_is_refused_with_the_way_out(alone: str, problem: str) -> None:
    (told,) = refused(alone)
    assert told.startswith(problem) and "or both to sqlite" in told and "hidden" not in told
    assert told.endswith(f"({alone.partition('=')[0]} from --set)")


def test_what_a_log_in_kafka_cannot_do_is_refused_by_name() -> None:
    (told,) = refused(*SERVERS, "pipeline.master=mesos://h")
    assert told.startswith("pipeline.master = 'mesos://h': use 'local'")
    (told,) = refused(*SERVERS, "pipeline.master=spark://h:7077")
    assert told.startswith("pipeline.master = 'spark://h:7077': the query archive writes messages.db")
    (told,) = refused("stores.log=kafka://h?x", "pipeline.mode=realtime")
    assert told.startswith("stores.log: has an option behind the '?'")
    (told,) = refused("pipeline.mode=realtime")
    assert told.startswith("pipeline.mode = 'realtime': Spark's real-time mode reads Kafka only")
    assert with_set(*SERVERS, "pipeline.mode=realtime").pipeline.enabled
    large = ["pipeline.enabled=false", f"mqtt.packet_bytes_max={2**27}", f"device.queue_bytes_max={2**28}"]
    (told,) = refused(*SERVERS, *large)
    assert told.startswith(f"mqtt.packet_bytes_max: {2**27} is more than goes to a Kafka")
    assert with_set(*large).mqtt.packet_bytes_max == 2**27
    (told,) = refused("kafka.replication_factor=2", "kafka.min_insync_replicas=3")
    assert told.startswith("kafka.min_insync_replicas: 3 is more than kafka.replication_factor, 2")


@pytest.mark.parametrize(
    ("url", "content", "told"),
    [
        ("kafka://ann@h", "secret\n", "secret"),
        ("kafka://ann:other@h", "secret", "secret"),
        ("kafka://ann@h", "\n", "is empty"),
        ("kafka://ann@h", None, "No such file"),
    ],
)
def test_the_password_of_kafka_may_be_in_a_file(
    tmp_path: Path, url: str, content: str | None, told: str
) -> None:
    path = tmp_path / "password"
    if content is not None:
        path.write_text(content)
    url = f"{url}?password_file={quote(str(path))}"
    if told == "secret":
        assert kafka_address(url).password == "secret"
        return
    with pytest.raises(StartError, match=told) as refused:
        kafka_address(url)
    assert str(refused.value).startswith("stores.log: password_file ") and "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("assignment", "problem"),
    [
        ("stores.static=mongodb://ann:hidden@h/d", "does not begin with one of postgresql://"),
        ("stores.static=mysql://ann:hidden@h", "does not name a database"),
        ("stores.static=mysql://ann:hid/den@h/d", "is not a URL"),
        ("stores.static=users.db", "or sqlite for the data directory"),
        ("stores.static:mysql://ann:hidden@h/d", "is not section.key=value"),
        ("stores.statik=mysql://ann:hidden@h/d", "the nearest is stores.static"),
        ("stores.statik:mysql://ann:hidden@h/d?socket=x", "unknown setting"),
        ("stores.log=kafka://ann:hid/den@h", "in passwords write %2F"),
        ("stores.log=redis://ann:hidden@h", "begins with redis, not with one of kafka://"),
        ("stores.log=/srv/hid/log", "or sqlite for the data directory"),
        ("sql.tls=sometimes", "unknown setting sql.tls (from --set); the nearest is "),
        ("stores.static=mysql://ann:hidden@h/d?tls=sometimes", "none of auto, off, require, verify"),
        (
            "kafka.password_file=/etc/secret",
            "unknown setting kafka.password_file (from --set); the nearest is ",
        ),
        ("sql.timeout_s=0.1", "less than the smallest allowed 0.5"),
    ],
)
def test_what_names_no_store_is_refused_without_its_password(assignment: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_configuration(assignments=[assignment])
    assert problem in str(refused.value)
    for secret in ("hid", "den@"):
        assert secret not in str(refused.value)


def test_what_a_client_may_be_told_and_which_versions_are_spoken() -> None:
    good = with_set(
        "mqtt.protocol_versions=3.1.1, 5.0",
        'listener."127.0.0.1:1883".protocol_versions=5.0',
        'listener."127.0.0.1:1883".max_qos=1',
        "mqtt.packet_bytes_max=20",
    )
    assert good.mqtt.protocol_versions == ("3.1.1", "5.0")
    assert good.listener["127.0.0.1:1883"] == {"protocol_versions": ("5.0",), "max_qos": 1}
    for assignment, told in (
        ("mqtt.protocol_versions=", "mqtt.protocol_versions: is an empty list"),
        ("mqtt.protocol_versions=5", "mqtt.protocol_versions: '5' is not one of 3.1, 3.1.1, 5.0"),
        ('listener."127.0.0.1:1883".max_qos=3', "3 is more than the largest allowed 2"),
        ("mqtt.packet_bytes_max=19", "mqtt.packet_bytes_max: 19 is less than the smallest allowed 20"),
    ):
        (problem,) = refused(assignment)
        assert told in problem
