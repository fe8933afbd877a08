"""Why a setting of Mosquitto is not carried over."""

from __future__ import annotations

from collections.abc import Mapping

_BRIDGE = "there are no bridges: run a program that subscribes there and publishes here"
_LOG = "lines go to standard error, and the service manager keeps them (docs/operations.md)"
_DISK = "everything is on disk before it is acknowledged: log.durability says how"
_CIPHER = "ciphers are those of Python's ssl module, with TLS 1.2 or 1.3"
_ENGINE = "keys are read from PEM files"
_PSK = (
    "there is no TLS with pre-shared keys: give clients certificates (embermq certs client NAME) or passwords"
)
_MEMORY = "memory is bounded by the limits of its parts (docs/limits.md)"
_SERVICE = "the service manager does that: embermq service install"
PLUGIN = (
    "there are no plugins: accounts (embermq users add), an HTTP hook or tokens decide who may enter, rules who may do "
    "what"
)
_PLUGIN_OPTION = "belongs to a plugin"

REASONS: Mapping[str, str] = {
    **dict.fromkeys(("connection", "address", "addresses", "topic"), _BRIDGE),
    **dict.fromkeys(
        ("log_dest", "log_facility", "log_timestamp", "log_timestamp_format", "websockets_log_level"), _LOG
    ),
    "connection_messages": "connections and their ends are always logged within 100 lines a second",
    **dict.fromkeys(("persistence", "autosave_interval", "autosave_on_changes"), _DISK),
    **dict.fromkeys(
        ("persistence_location", "persistence_file"),
        "sessions and retained messages that Mosquitto has stored are not read: have them published again, as "
        "docs/from-mosquitto.md says",
    ),
    **dict.fromkeys(("ciphers", "ciphers_tls1.3", "dhparamfile"), _CIPHER),
    **dict.fromkeys(("tls_engine", "tls_engine_kpass_sha1", "tls_keyform"), _ENGINE),
    **dict.fromkeys(("psk_file", "psk_hint"), _PSK),
    **dict.fromkeys(("memory_limit", "max_inflight_bytes"), _MEMORY),
    **dict.fromkeys(("pid_file", "user", "daemon"), _SERVICE),
    **dict.fromkeys(("auth_plugin", "plugin", "global_plugin", "plugin_load", "plugin_use"), PLUGIN),
    "auth_plugin_deny_special_chars": "a name with + or # in it fills in no pattern of an ACL, always",
    "allow_duplicate_messages": "a message comes once for each matching subscription, as MQTT has it",
    "capath": "a folder of certificates is not read: put them into one file, tls.ca",
    "auto_id_prefix": "client ids that the broker makes begin with ember-",
    "check_retain_source": "the publisher of a retained message must still have the right, always",
    "clientid_prefixes": "rules say who may use which client id: action connect, docs/authorization.md#client-ids",
    "http_dir": "no files are served over HTTP",
    "max_topic_alias_broker": "mqtt.topic_alias_maximum is for both directions",
    "mount_point": "topics get no prefix",
    "bind_interface": "name the address of the interface in the listener",
    "queue_qos0_messages": "messages of QoS 0 are not stored for absent clients",
    "retain_expiry_interval": "retained messages stay until their publisher's expiry",
    "set_tcp_nodelay": "it is always on",
    "store_clean_interval": "there is no such interval",
    "upgrade_outgoing_qos": "the QoS of a message is never raised",
    "websockets_headers_size": "a WebSocket request may have 8 KiB",
    "enable_control_api": "operators use the commands of embermq, and its API",
}

PREFIXES: Mapping[str, str] = {
    "bridge_": _BRIDGE,
    "remote_": _BRIDGE,
    "local_": _BRIDGE,
    "notification": _BRIDGE,
    "auth_opt_": _PLUGIN_OPTION,
    "plugin_opt_": _PLUGIN_OPTION,
}

BRIDGE_ONLY = frozenset(
    (
        *("cleansession", "clientid", "idle_timeout", "keepalive_interval", "password", "restart_timeout"),
        *("round_robin", "start_type", "threshold", "try_private", "username"),
    )
)

PLUGINS = frozenset(("auth_plugin", "plugin", "global_plugin", "plugin_load", "plugin_use"))

SHUTS_LISTENER = ("mount_point", "bind_interface", "psk_hint", "tls_engine")
"""A listener with one of these is not opened: without it more clients could reach it, or more topics through it."""


def reason(name: str) -> str:
    """Why `name` is not carried over."""
    if name in REASONS:
        return REASONS[name]
    if name in BRIDGE_ONLY:
        return _BRIDGE
    for prefix, why in PREFIXES.items():
        if name.startswith(prefix):
            return why
    return "is not known here, nor to Mosquitto 2.0"
