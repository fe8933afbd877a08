"""What clients may change about queues: settings by a publish [queues-33], and new ones by use [queues-29]."""

from embermq.access.authorization.rule_set import Permissions
from embermq.access.authorization.rules import ADMIN_PREFIX
from embermq.mqtt.topics.names import shown
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.ports.tick_store import queue_owner
from embermq.queues.errors import QueueRefusal, SettingsRefused
from embermq.queues.names import QUEUE_PREFIX, queue_name
from embermq.queues.queues import Queues
from embermq.queues.settings import BrokerQueueSettings, parse_operator_settings
from embermq.sessions.session import Session
from embermq.sessions.tick import PublishRefusal, Verdict


class Creating:
    """Asked before the first message of a queue, or its first consumer."""

    def __init__(self, core: Queues, settings: BrokerQueueSettings) -> None:
        self._core = core
        self._settings = settings

    def check(self, name: str, permissions: Permissions | None) -> None:
        """Raise QueueRefusal unless the queue is there or may be made."""
        if name in self._core:
            return
        missing = f"there is no queue {shown(name)}"
        if permissions is not None and not permissions.may_create(QUEUE_PREFIX + name):
            raise QueueRefusal(f"{missing}, and making it is not allowed", ReasonCode.NOT_AUTHORIZED)
        if not self._settings.auto_create:
            raise QueueRefusal(
                f"{missing}, and none is made by being used (queues.auto_create)",
                ReasonCode.NOT_AUTHORIZED,
            )
        self.check_room(name)

    def check_group(self, name: str, group: str) -> None:
        """Raise QueueRefusal when this group would be one too many."""
        queue, limit = self._core.find(name), self._settings.groups_max
        if queue is not None and group not in queue.groups and len(queue.groups) >= limit:
            raise QueueRefusal(
                f"queue {shown(name)} has {len(queue.groups)} consumer groups, the limit is {limit}"
                f" (queues.groups_max); {shown(group)} would be one more",
                ReasonCode.QUOTA_EXCEEDED,
            )

    def check_room(self, name: str) -> None:
        """Raise QueueRefusal when there may be no more queues."""
        limit = self._settings.queues_max
        if len(self._core) >= limit:
            raise QueueRefusal(
                f"there is no queue {shown(name)}, and there are {len(self._core)} already, the limit is {limit}"
                " (queues.queues_max)",
                ReasonCode.QUOTA_EXCEEDED,
            )


SUFFIX = "/config"


def queue_of(topic: str) -> str:
    """The queue that a topic below `$admin/queue/` names, if it does."""
    return queue_name(topic[len(ADMIN_PREFIX) :]).removesuffix(SUFFIX)


class Configuring:
    """The body is what the API takes: JSON; the answer comes when it is durable."""

    def __init__(self, core: Queues, creating: Creating) -> None:
        self._core = core
        self._creating = creating

    def configure(self, session: Session, topic: str, payload: bytes) -> Verdict | PublishRefusal:
        """What a PUBLISH below `$admin/queue/` comes to; it is never delivered to anybody."""
        try:
            name, done = self._configure(session, topic, payload)
            owner = queue_owner(self._core.queue(name).generation)
            return Verdict(ReasonCode.SUCCESS, done, owner=owner)
        except QueueRefusal as refusal:
            return PublishRefusal(refusal.reason_code, refusal.message)

    def _configure(self, session: Session, topic: str, payload: bytes) -> tuple[str, str]:
        """Which queue, and what was done, in words. Raises QueueRefusal."""
        # Rules are asked about one form of the name: the other one must not lead past them.
        topic = ADMIN_PREFIX + queue_name(topic[len(ADMIN_PREFIX) :])
        if session.permissions is None or not session.permissions.may_publish(topic):
            raise QueueRefusal(
                f"publishing to {shown(topic)} needs a rule that allows it and names it in its topics",
                ReasonCode.NOT_AUTHORIZED,
            )
        name = topic[len(ADMIN_PREFIX) :].removesuffix(SUFFIX)
        if not topic.endswith(SUFFIX) or not name:
            raise QueueRefusal(
                f"{shown(topic)} is not {ADMIN_PREFIX}<name>{SUFFIX}", ReasonCode.TOPIC_NAME_INVALID
            )
        try:
            settings = parse_operator_settings(name, payload or b"{}")
            is_new = name not in self._core
            if is_new:
                self._creating.check_room(name)
            self._core.configure(settings)
        except SettingsRefused as refusal:
            raise QueueRefusal(str(refusal), ReasonCode.PAYLOAD_FORMAT_INVALID) from None
        return name, "created" if is_new else "configured"
