"""`$admin/queue/<name>/config`: settings of a queue by a publish, for those whom a rule allows it [queues-33]."""

from embermq.access.authorization.rules import ADMIN_PREFIX
from embermq.mqtt.topics.names import shown
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.ports.tick_store import queue_owner
from embermq.queues.errors import QueueRefusal, SettingsRefused
from embermq.queues.mqtt.creating import Creating
from embermq.queues.names import queue_name
from embermq.queues.queues import Queues
from embermq.queues.settings import parse_operator_settings
from embermq.sessions.session import Session
from embermq.sessions.tick import PublishRefusal, Verdict

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
