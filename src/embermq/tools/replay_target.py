"""Where messages go that come in once more: to one APPLICATION client, to a topic, or to a queue."""

from __future__ import annotations

from msgspec import Struct

from embermq.admin.operations import GET_CLIENT, GET_QUEUE_STATS
from embermq.app.control import ControlClient
from embermq.app.errors import OptionError, UserError
from embermq.mqtt.topics.errors import TopicError
from embermq.mqtt.topics.names import SHARE_PREFIX, is_system_topic, validate_topic
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.pipeline.jobs.replay_feed import PLACE
from embermq.queues.errors import NameRefused
from embermq.queues.names import QUEUE_PREFIX, parse_topic, queue_name


class ReplayTarget(Struct, frozen=True, kw_only=True):
    """As it was typed: one of them is given."""

    client: str = ""
    topic: str = ""
    queue: str = ""

    @property
    def name(self) -> str:
        """The target as `client NAME`, `topic NAME` or `queue NAME`."""
        if self.client:
            return f"client {self.client}"
        return f"topic {self.topic}" if self.topic else f"queue {self.queue}"


def target_topic(words: ReplayTarget) -> str:
    """The topic of each message, with PLACE for its own. Raises OptionError."""
    given = [name for name in ("client", "topic", "queue") if getattr(words, name)]
    if len(given) != 1:
        raise OptionError("one of --client, --topic and --queue says where the messages go")
    if words.client:
        return PLACE
    option, target = (
        ("--topic", words.topic) if words.topic else ("--queue", QUEUE_PREFIX + queue_name(words.queue))
    )
    try:
        validate_topic(target.replace(PLACE, "t"))
        if words.queue and parse_topic(target).verb is not None:
            raise NameRefused("it names no queue", ReasonCode.TOPIC_NAME_INVALID)
    except (TopicError, NameRefused) as error:
        raise OptionError(f"{option}: {error}") from None
    if words.topic and (is_system_topic(target) or target.startswith((SHARE_PREFIX, QUEUE_PREFIX))):
        raise OptionError(f"--topic: {target!r} is no topic to replay to; --queue names a queue")
    return target


def check_target(broker: ControlClient, words: ReplayTarget) -> None:
    """Raises UserError when there is none: the broker would take it as a name like any other."""
    if words.queue:
        broker.ask(GET_QUEUE_STATS, name=queue_name(words.queue))
    if words.client:
        found = broker.ask(GET_CLIENT, client_id=words.client)["session"]
        if found["type"] != "application" or not found["kept"]:
            raise UserError(
                f"the client {words.client!r} has no application log, it is a {found['type'].upper()} client;"
                " --topic reaches whoever has subscribed"
            )
