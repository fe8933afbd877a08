"""The one schema of settings, and the ways to set them.

In rising order of precedence: defaults, TOML file (`--config`), environment (`EMBERMQ_<SECTION>__<KEY>`, and
`EMBERMQ_DATA_DIR`), `--set section.key=value`, dedicated options such as `--data-dir`. What is unknown or
impossible is refused by name, with where it came from.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import NoneType
from typing import get_args

import msgspec
from msgspec import Struct, field
from msgspec.structs import FieldInfo, fields, replace

from embermq.access.authentication import settings as authentication_settings
from embermq.access.authentication.settings import (
    AuthenticationSettings,
    HttpHookSettings,
    JwtSettings,
)
from embermq.access.authorization import settings as authorization_settings
from embermq.access.authorization.settings import AuthorizationSettings
from embermq.adapters.etcd.address import parse_address as parse_etcd_address
from embermq.adapters.kafka import address as kafka_address
from embermq.adapters.kafka.address import KafkaSettings
from embermq.adapters.redis import address as redis_address
from embermq.adapters.redis.address import RedisSettings
from embermq.adapters.sqlite import settings as log_settings
from embermq.adapters.sqlite.settings import LogSettings
from embermq.adapters.webhook import settings as webhook_settings
from embermq.adapters.webhook.settings import WebhookSettings
from embermq.app import settings as store_settings
from embermq.app.errors import ConfigError
from embermq.app.pipeline_side import check_pipeline
from embermq.app.queue_file import check_queue_file
from embermq.app.setting_value import SettingLines, convert_setting
from embermq.app.settings import StoreSettings
from embermq.app.slots import check_slots
from embermq.app.stored_rules import ORIGIN, stored_rules
from embermq.cluster.settings import ClusterSettings
from embermq.database.database_url import SqlSettings
from embermq.delivery.application.settings import ApplicationSettings
from embermq.delivery.device.settings import DeviceSettings
from embermq.edge import settings as listener_settings
from embermq.edge.listener_settings import compose_listeners, table_name
from embermq.edge.settings import (
    ClientSettings,
    ListenerSettings,
    OwnSettings,
    TlsSettings,
    WebSocketSettings,
)
from embermq.observability.settings import LoggingSettings
from embermq.pipeline.rules.settings import RuleSettings, check_rules
from embermq.pipeline.settings import PipelineSettings
from embermq.ports.store_url import without_password
from embermq.queues.settings import BrokerQueueSettings
from embermq.sessions.settings import MqttSettings

ENVIRONMENT_PREFIX = "EMBERMQ_"
PACKET_IDS = 65_535
MIB = 1024 * 1024
CONFIG_BYTES_MAX = MIB
KAFKA_PACKET_BYTES_MAX = 64 * MIB
"""Kafka's own is socket.request.max.bytes, 100 MiB unless it is changed; a larger request never gets an answer."""
HEAP_PER_PACKET_BYTE = 40
"""Each query of the pipeline holds several copies of a message on its way through Spark."""


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set; each section is defined by the room that it is for."""

    data_dir: str = "./embermq-data"
    """The data directory; created when it is missing, relative to the working directory."""
    listeners: ListenerSettings = field(default_factory=ListenerSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    websocket: WebSocketSettings = field(default_factory=WebSocketSettings)
    listener: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Tables `[listener."host:port"]` with what differs on that listener; see [transports](transports.md)."""
    clients: ClientSettings = field(default_factory=ClientSettings)
    authentication: AuthenticationSettings = field(default_factory=AuthenticationSettings)
    jwt: JwtSettings = field(default_factory=JwtSettings)
    http_hook: HttpHookSettings = field(default_factory=HttpHookSettings)
    authorization: AuthorizationSettings = field(default_factory=AuthorizationSettings)
    mqtt: MqttSettings = field(default_factory=MqttSettings)
    stores: StoreSettings = field(default_factory=StoreSettings)
    kafka: KafkaSettings = field(default_factory=KafkaSettings)
    redis: RedisSettings = field(default_factory=RedisSettings)
    sql: SqlSettings = field(default_factory=SqlSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    log: LogSettings = field(default_factory=LogSettings)
    device: DeviceSettings = field(default_factory=DeviceSettings)
    application: ApplicationSettings = field(default_factory=ApplicationSettings)
    queues: BrokerQueueSettings = field(default_factory=BrokerQueueSettings)
    webhook: WebhookSettings = field(default_factory=WebhookSettings)
    pipeline: PipelineSettings = field(default_factory=PipelineSettings)
    rules: Mapping[str, RuleSettings] = field(default_factory=dict)
    """Tables `[rules.NAME]`, SQL over the messages each; see [rules](rules.md)."""
    logging: LoggingSettings = field(default_factory=LoggingSettings)


class Setting(Struct, frozen=True):
    """One effective setting: its dotted key, its value and where that came from (`default`, `--set`, ...)."""

    key: str
    value: object
    origin: str


class Configuration(Struct, frozen=True):
    """Valid settings, and the origin of each one that is not a default."""

    settings: Settings
    origins: Mapping[str, str]

    @property
    def shown(self) -> Settings:
        """The settings as anybody may see them: without passwords."""
        return replace(
            self.settings, stores=self.settings.stores.shown(), cluster=self.settings.cluster.shown()
        )

    def effective(self) -> Iterator[Setting]:
        """Every setting, in the order of the schema, without passwords."""
        shown = self.shown
        for key in _SCHEMA:
            value: object = shown
            for name in key.split("."):
                value = getattr(value, name)
            yield Setting(key, value, self.origins.get(key, "default"))
        for address, table in self.settings.listener.items():
            for name, value in table.items():
                key = f"{table_name(address)}.{name}"
                yield Setting(key, value, self.origins.get(key, "default"))
        for name, rule in self.settings.rules.items():
            for info in fields(RuleSettings):
                key = f"{_RULES}{name}.{info.name}"
                value = getattr(rule, info.name)
                value = rule.shown_url if info.name == "url" else value
                yield Setting(key, value, self.origins.get(key, "default"))


class _Given(Struct, frozen=True):
    """A value as a source gave it; `is_text` when it came as text that is still to be read."""

    key: str
    value: object
    origin: str
    is_text: bool
    line: int = 0

    @property
    def place(self) -> str:
        """Where it came from, for somebody who has to change it there."""
        return f"{self.origin}, line {self.line}" if self.line else self.origin


def load_configuration(
    *,
    config_file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    assignments: Sequence[str] = (),
    options: Mapping[str, tuple[str, object]] | None = None,
) -> Configuration:
    """Compose all sources.

    `assignments` are `section.key=value` texts of `--set`; `options` maps a dotted key to the dedicated option that
    sets it and the value, for example `{"data_dir": ("--data-dir", "/srv/mq")}`.
    Raises ConfigError with every problem found.
    """
    problems: list[str] = []
    given: list[_Given] = []
    if config_file is not None:
        given += _from_file(config_file, problems)
    given += _from_environment(environment or {}, problems)
    given += _from_assignments(assignments, problems)
    given += [_Given(key, value, option, False) for key, (option, value) in (options or {}).items()]

    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    places: dict[str, str] = {}
    for item in given:
        key, annotation = _find(item.key)
        if annotation is None:
            problems.append(_unknown(item))
            continue
        value, problem = convert_setting(item.value, annotation, is_text=item.is_text)
        if problem:
            problems.append(f"{key}: {without_password(problem)} (from {item.place})")
        values[key] = value
        origins[key], places[key] = item.origin, item.place
    if problems:
        raise ConfigError(*problems)

    settings = _with_stored_rules(_compose(values), origins, problems)
    problems += [_with_origin(problem, places) for problem in _contradictions(settings)]
    if problems:
        raise ConfigError(*problems)
    in_order = [*_SCHEMA, *(key for key in origins if key not in _SCHEMA)]
    return Configuration(settings, {key: origins[key] for key in in_order if key in origins})


def _schema(struct: type[Struct], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for info in fields(struct):
        if isinstance(info.type, type) and issubclass(info.type, Struct):
            yield from _schema(info.type, f"{prefix}{info.name}.")
        else:
            yield prefix + info.name, info


def _without_none(kind: object) -> object:
    """The type of a setting that may be left out."""
    kinds = [one for one in get_args(kind) if one is not NoneType]
    return kinds[0] if len(kinds) == 1 and NoneType in get_args(kind) else kind


_LISTENER = "listener."
_RULES = "rules."
_RULE_KEYS: dict[str, object] = {info.name: info.type for info in fields(RuleSettings)}
_LISTENER_KEYS: dict[str, object] = {
    info.name: _without_none(info.type)
    for struct in (OwnSettings, TlsSettings, WebSocketSettings)
    for info in fields(struct)
}
"""What a table `[listener."address"]` may set, and of which type; None is said by saying nothing."""
_SCHEMA: dict[str, FieldInfo] = {
    key: info for key, info in _schema(Settings) if f"{key}." not in (_LISTENER, _RULES)
}
_SECTIONS: dict[str, type[Struct]] = {
    info.name: info.type
    for info in fields(Settings)
    if isinstance(info.type, type) and issubclass(info.type, Struct)
}


def _find(key: str) -> tuple[str, object]:
    """The setting in its one spelling, since `listener."0.0.0.0:8883".cert` may be written without the quotes, and its
    type, None when there is no such setting."""
    rule, name = _of_rule(key)
    if rule:
        return key, _RULE_KEYS.get(name)
    address, name = _of_listener(key)
    if not address:
        return key, _SCHEMA[key].type if key in _SCHEMA else None
    return f"{table_name(address)}.{name}", _LISTENER_KEYS.get(name)


def _of_listener(key: str) -> tuple[str, str]:
    """Address and name of a setting of one listener, or two empty texts."""
    if not key.startswith(_LISTENER):
        return "", ""
    address, _, name = key.removeprefix(_LISTENER).rpartition(".")
    return address.removeprefix('"').removesuffix('"'), name


def _of_rule(key: str) -> tuple[str, str]:
    """Name and key of a setting of one rule, or two empty texts."""
    if not key.startswith(_RULES):
        return "", ""
    rule, _, name = key.removeprefix(_RULES).rpartition(".")
    return rule, name


def _compose(values: Mapping[str, object]) -> Settings:
    tables: dict[str, dict[str, object]] = {}
    rules: dict[str, dict[str, object]] = {}
    for key, value in values.items():
        rule, name = _of_rule(key)
        if rule:
            rules.setdefault(rule, {})[name] = value
        address, name = _of_listener(key)
        if address:
            tables.setdefault(address, {})[name] = value
    values = {key: value for key, value in values.items() if key in _SCHEMA}
    sections: dict[str, object] = {"listener": tables, "rules": rules}
    for name, struct in _SECTIONS.items():
        prefix = name + "."
        sections[name] = struct(
            **{key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}
        )
    sections.update((key, value) for key, value in values.items() if "." not in key)
    return msgspec.convert(sections, Settings, from_attributes=True)


def _with_stored_rules(settings: Settings, origins: dict[str, str], problems: list[str]) -> Settings:
    """Those that were written over the API as well; a rule of the configuration comes first."""
    try:
        stored = stored_rules(Path(settings.data_dir))
    except PermissionError:  # another user's broker: who may not read them does not run them
        return settings
    except (ValueError, OSError) as error:
        problems.append(f"rules that were written over the API: {error}")
        return settings
    new = {name: rule for name, rule in stored.items() if name not in settings.rules}
    origins.update((f"{_RULES}{name}.{info.name}", ORIGIN) for name in new for info in fields(RuleSettings))
    return replace(settings, rules={**settings.rules, **new}) if new else settings


def _from_file(path: Path, problems: list[str]) -> list[_Given]:
    try:
        data = path.read_bytes()
        if len(data) > CONFIG_BYTES_MAX:
            raise ConfigError(
                f"{path}: {len(data)} bytes is more than a configuration may have, {CONFIG_BYTES_MAX}"
            )
        document, lines = tomllib.loads(data.decode()), SettingLines(data.decode())
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    given: list[_Given] = []
    for name, content in document.items():
        if f"{name}." in (_LISTENER, _RULES) and isinstance(content, dict):
            given += _from_tables(name, content, str(path), lines)
        elif name in _SECTIONS and not isinstance(content, dict):
            problems.append(f"{name}: is a section, written [{name}] (from {path}, line {lines.line(name)})")
        elif isinstance(content, dict) and name not in _SCHEMA and (content or name in _SECTIONS):
            given += [
                _Given(f"{name}.{key}", value, str(path), False, lines.line(name, key))
                for key, value in content.items()
            ]
        else:
            given.append(_Given(name, content, str(path), False, lines.line(name)))
    return given


def _from_tables(
    kind: str, tables: Mapping[str, object], origin: str, lines: SettingLines
) -> Iterator[_Given]:
    for name, table in tables.items():
        if isinstance(table, dict):
            whole = table_name(name) if f"{kind}." == _LISTENER else f"{kind}.{name}"
            for key, value in table.items():
                yield _Given(f"{whole}.{key}", value, origin, False, lines.line(kind, name, key))
        else:
            yield _Given(f"{kind}.{name}", table, origin, False, lines.line(kind, name))


def _from_environment(environment: Mapping[str, str], problems: list[str]) -> list[_Given]:
    """`EMBERMQ_DEVICE__QUEUE_LIMIT=500` sets `device.queue_limit`."""
    given = []
    for variable in sorted(environment):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        key = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
        if key in _SCHEMA:
            given.append(_Given(key, environment[variable], variable, True))
        else:
            nearest = get_close_matches(key, _SCHEMA, n=1, cutoff=0.5)
            hint = f"; the nearest is {_variable(nearest[0])}" if nearest else ""
            problems.append(f"unknown setting {variable} in the environment{hint}")
    return given


def _variable(key: str) -> str:
    return ENVIRONMENT_PREFIX + key.upper().replace(".", "__")


def _from_assignments(assignments: Sequence[str], problems: list[str]) -> list[_Given]:
    given = []
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if equals:
            given.append(_Given(key.strip(), value, "--set", True))
        else:
            problems.append(f"--set {without_password(assignment)}: is not section.key=value")
    return given


def _unknown(item: _Given) -> str:
    if item.key in _SECTIONS:
        keys = ", ".join(key for key in _SCHEMA if key.startswith(item.key + "."))
        return f"{item.key} is a section, not a setting (from {item.place}); it has {keys}"
    section, dot, name = item.key.partition(".")
    candidates: list[str] = []
    rule, name_there = _of_rule(item.key)
    if rule:
        near_there = get_close_matches(name_there, _RULE_KEYS, n=1, cutoff=0.5)
        candidates = [f"{_RULES}{rule}.{near}" for near in near_there]
    address, name_there = _of_listener(item.key)
    if address:
        near_there = get_close_matches(name_there, _LISTENER_KEYS, n=1, cutoff=0.5)
        candidates = [f"{table_name(address)}.{near}" for near in near_there]
    if dot and section in _SECTIONS:
        names = [key.partition(".")[2] for key in _SCHEMA if key.startswith(section + ".")]
        candidates = [f"{section}.{near}" for near in get_close_matches(name, names, n=1, cutoff=0.5)]
    if not candidates:
        candidates = get_close_matches(item.key, _SCHEMA, n=1, cutoff=0.5)
    if not candidates:
        candidates = [key for key in _SCHEMA if key.rpartition(".")[2] == item.key][:1]
    hint = f"; the nearest is {candidates[0]}" if candidates else f"; sections are {', '.join(_SECTIONS)}"
    return f"unknown setting {without_password(item.key)} (from {item.place}){hint}"


def _check_listeners(settings: Settings) -> None:
    listener_settings.check_settings(settings.listeners)
    compose_listeners(settings.listeners, settings.listener, settings.tls, settings.websocket)


def _check_cluster(settings: Settings) -> None:
    if not settings.cluster.etcd:
        if settings.cluster.slots > 1:
            raise ValueError(
                "cluster.slots: several nodes find one another by cluster.etcd, which is not set"
            )
        return
    try:
        parse_etcd_address(settings.cluster.etcd)
    except ValueError as error:
        raise ValueError(f"cluster.etcd: {error}") from None
    stores = {"stores.log": settings.stores.log, "stores.session": settings.stores.session}
    lacking = " and ".join(name for name, url in stores.items() if url == store_settings.SQLITE)
    if lacking:
        raise ValueError(
            f"cluster.etcd: nodes of a cluster share their stores; set {lacking} to a Kafka and a Redis"
        )
    check_slots(settings)


def queue_settings(settings: Settings) -> DeviceSettings:
    """Those of device queues. In Redis every stored message has a packet id, and what is in flight without being stored
    needs one too: so the ids of the window are set aside within the limit."""
    device = settings.device
    if settings.stores.session == store_settings.SQLITE:
        return device
    return replace(device, queue_limit=min(device.queue_limit, PACKET_IDS - settings.mqtt.inflight_max))


def _contradictions(settings: Settings) -> Iterator[str]:
    """Problems that no single value shows; each text starts with the key it is about."""
    checks: tuple[Callable[[], None], ...] = (
        partial(_check_listeners, settings),
        partial(
            authentication_settings.check_settings,
            settings.authentication,
            settings.jwt,
            settings.http_hook,
            allow_anonymous=settings.clients.allow_anonymous,
        ),
        partial(authorization_settings.check_settings, settings.authorization),
        partial(store_settings.check_settings, settings.stores),
        partial(_check_cluster, settings),
        partial(kafka_address.check_settings, settings.kafka),
        partial(redis_address.check_settings, settings.redis),
        partial(log_settings.check_settings, settings.log),
        partial(check_pipeline, settings),
        partial(check_rules, settings.rules),
        partial(check_queue_file, settings.queues),
        partial(webhook_settings.check_settings, settings.webhook),
    )
    for check in checks:
        try:
            check()
        except ValueError as error:
            yield str(error)
    limit, window = settings.device.queue_limit, settings.mqtt.inflight_max
    if queue_settings(settings).queue_limit < limit <= window:
        yield (
            f"device.queue_limit: {limit} has to be more than mqtt.inflight_max, {window}, since they are together "
            f"more than the {PACKET_IDS} packet identifiers of a session, which its messages in Redis have"
        )
    if settings.device.queue_bytes_max < settings.mqtt.packet_bytes_max:
        yield (
            f"device.queue_bytes_max: {settings.device.queue_bytes_max} is less than one message may have, "
            f"mqtt.packet_bytes_max, {settings.mqtt.packet_bytes_max}"
        )
    on_kafka = settings.stores.log != store_settings.SQLITE
    if on_kafka and settings.mqtt.packet_bytes_max > KAFKA_PACKET_BYTES_MAX:
        yield (
            f"mqtt.packet_bytes_max: {settings.mqtt.packet_bytes_max} is more than goes to a Kafka in one request, "
            f"{KAFKA_PACKET_BYTES_MAX}"
        )
    heap_mb = -(-settings.mqtt.packet_bytes_max * HEAP_PER_PACKET_BYTE // MIB)
    if settings.pipeline.enabled and heap_mb > settings.pipeline.heap_mb:
        yield (
            f"mqtt.packet_bytes_max: {settings.mqtt.packet_bytes_max} needs pipeline.heap_mb of at least {heap_mb}, "
            f"it is {settings.pipeline.heap_mb}; or run without the pipeline"
        )
    if not settings.data_dir.strip() or "\0" in settings.data_dir:
        yield f"data_dir: {settings.data_dir!r} is not the name of a directory"


def _with_origin(problem: str, origins: Mapping[str, str]) -> str:
    named = [
        f"{key} from {origin}"
        for key, origin in origins.items()
        if re.search(rf"(?<![\w.]){re.escape(key)}(?!\w)", problem)
    ]
    key = next((key for key in origins if problem.startswith((key + ":", key + " "))), None)
    if key is not None and len(named) == 1:
        return f"{problem} (from {origins[key]})"
    return f"{problem} ({', '.join(named)})" if named else problem
