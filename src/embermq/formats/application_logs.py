"""What application logs and their consumer groups are called in Kafka.

    <prefix>.msg.app.<client id>                       the log of one APPLICATION client
    <prefix>.msg.app.shared.<levels of the filter>     the log of a shared filter, `/` → `.`, `#` → `mlw`, `+` → `slw`
    application-shared-msg-consumer-group-<share>-<name of the log>

What cannot stand there as it is, is replaced by its SHA-256 in hex. No two clients and no two filters get one name,
nor two names that Kafka holds for one: it refuses topics that differ in `.` and `_` only, so neither may come from a
client. Kafka tells upper from lower case, and so do the names.
"""

import re
from hashlib import sha256

NAME_CHARACTERS_MAX = 249
"""Kafka's limit for a topic."""
PREFIX_CHARACTERS_MAX = 160
"""So that every name of the broker fits behind it."""
SHARE_BYTES_MAX = 255
"""A longer share name is replaced by its SHA-256 in the name of the consumer group."""

SHARED = "shared."
"""What the names of logs of shared filters have behind the root, and no other."""
_STAMP_OF_SHARED = "\0"
"""No client id has this character [MQTT-1.5.4-2]."""
_GROUP = "application-shared-msg-consumer-group-"
_LEVELS = {"#": "mlw", "+": "slw"}

_PREFIX = re.compile(r"[a-zA-Z0-9._-]+")
_PLAIN = re.compile(r"[a-zA-Z0-9]+")
_PLAIN_LEVEL = re.compile(r"[a-zA-Z0-9]*")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_PRINTABLE = re.compile(r"[!-~]+")


class NoApplicationLog(ValueError):
    """A client id or a filter for which there is no log, because names made from hashes are switched off."""


class ApplicationLogNames:
    """Names below one prefix. The validations are those of the settings: on, what does not fit is hashed; off, it has
    no log. Raises ValueError when no topic of Kafka can begin with the prefix."""

    def __init__(
        self, prefix: str, *, client_id_validation: bool = True, shared_topic_validation: bool = True
    ) -> None:
        if not _PREFIX.fullmatch(prefix):
            raise ValueError(
                f"prefix {prefix[:80]!r}: topics of Kafka consist of letters, digits, '.', '_', '-'"
            )
        if len(prefix) > PREFIX_CHARACTERS_MAX:
            raise ValueError(f"a prefix of {len(prefix)} characters, the limit is {PREFIX_CHARACTERS_MAX}")
        self._prefix = prefix
        self._root = f"{prefix}.msg.app."
        self._client_id_validation = client_id_validation
        self._shared_topic_validation = shared_topic_validation

    def without_limits(self) -> "ApplicationLogNames":
        """The names of what is stored already, whatever the validations say now."""
        return ApplicationLogNames(self._prefix)

    def client_log(self, client_id: str) -> str:
        """The log of an APPLICATION client. Raises NoApplicationLog [application-2]."""
        if self._is_plain(client_id, _PLAIN):
            return self._root + client_id
        if not self._client_id_validation:
            raise NoApplicationLog(
                f"client id {_shown(client_id)} has no application log: application.client_id_validation is off, so an"
                f" id consists of at most {NAME_CHARACTERS_MAX - len(self._root)} letters and digits and does not look"
                " like a SHA-256"
            )
        return self._root + _digest(client_id)

    def shared_log(self, topic_filter: str) -> str:
        """The log of a filter of shared subscriptions, given without `$share/<share>/`. Raises NoApplicationLog
        [application-11]."""
        levels = topic_filter.split("/")
        if all(_PLAIN_LEVEL.fullmatch(level) or level in _LEVELS for level in levels):
            name = ".".join(_LEVELS.get(level, level) for level in levels)
            is_one_to_one = not any(level in _LEVELS.values() for level in levels)
            if is_one_to_one and self._is_plain(SHARED + name, None):
                return f"{self._root}{SHARED}{name}"
        if not self._shared_topic_validation:
            raise NoApplicationLog(
                f"topic filter {_shown(topic_filter)} has no shared log: application.shared_topic_validation is off,"
                f" so its levels consist of letters and digits and are not called"
                f" {' or '.join(_LEVELS.values())}, and the name of the log has at most {NAME_CHARACTERS_MAX}"
                " characters"
            )
        return f"{self._root}{SHARED}{_digest(topic_filter)}"

    def shared_group(self, share: str, topic_filter: str) -> str:
        """The consumer group that the members of one shared subscription form. Raises NoApplicationLog as the log.

        The name of the log has no `-` behind the prefix, so it is certain where the share name ends.
        """
        fits = _PRINTABLE.fullmatch(share) and len(share) <= SHARE_BYTES_MAX and not _DIGEST.fullmatch(share)
        return f"{_GROUP}{share if fits else _digest(share)}-{self.shared_log(topic_filter)}"

    def plain_client(self, log: str) -> str | None:
        """The client whose log has this name, if that shows it; None for what is hashed or shared."""
        client_id = log.removeprefix(self._root)
        return client_id if log.startswith(self._root) and self._is_plain(client_id, _PLAIN) else None

    def stamped_log(self, log: str) -> str:
        """The log that a stamp of the broker names by its client, or by its filter (`stamp_of_shared_log`). Raises
        NoApplicationLog."""
        if log.startswith(_STAMP_OF_SHARED):
            return self.shared_log(log.removeprefix(_STAMP_OF_SHARED))
        return self.client_log(log)

    def is_shared_log(self, log: str) -> bool:
        """Whether an application log is one of a shared filter."""
        return log.startswith(self._root + SHARED)

    def is_application_log(self, topic: str) -> bool:
        """Whether a topic of Kafka is one of these logs."""
        return topic.startswith(self._root) and len(topic) > len(self._root)

    def _is_plain(self, text: str, allowed: re.Pattern[str] | None) -> bool:
        """Whether it can stand behind the root as it is, and is not what a hash looks like."""
        return bool(
            len(self._root) + len(text) <= NAME_CHARACTERS_MAX
            and (allowed is None or allowed.fullmatch(text))
            and not _DIGEST.fullmatch(text.removeprefix(SHARED))
        )


def stamp_of_shared_log(topic_filter: str) -> str:
    """How a stamp that has no name of Kafka yet names the log of a shared filter."""
    return _STAMP_OF_SHARED + topic_filter


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 80 else f"{text[:80]!r}… ({len(text)} characters)"
