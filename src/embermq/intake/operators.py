"""Messages that operators publish, and the retained ones that they delete: by the one way in, for whoever has
subscribed. No rules are asked; what no client may send is refused all the same."""

from embermq.intake.publishing import Publishing
from embermq.intake.refusing import RETAINED_FULL
from embermq.model.message import Message
from embermq.mqtt.value import replace
from embermq.sessions.durable_queues import PUBLISHED_PREFIXES
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Asked, PublishRefusal


class OperatorsPublishing:
    """See the module."""

    def __init__(self, state: BrokerState, publishing: Publishing) -> None:
        self._state = state
        self._publishing = publishing

    def publish(self, message: Message, asked: Asked) -> PublishRefusal | None:
        """Take a message; `asked` learns whether it is stored. Returns why it is refused, or what a queue says of one
        that it takes and does not enqueue."""
        refusing = self._publishing.refusing
        refusal = refusing.objection_to(message, self._state.settings.max_qos) or refusing.objection_to_topic(
            message.topic
        )
        if refusal is not None:
            return refusal
        is_for_queue = self._state.queues is not None and message.topic.startswith(PUBLISHED_PREFIXES)
        if is_for_queue:
            message = replace(message, retain=False)  # queues retain nothing
        elif not message.qos and not message.retain:
            self._state.share.relay(message)
            self._publishing.publish_unstored(message)
            return None
        if message.retain and not refusing.has_room(message):
            return RETAINED_FULL
        refusal = self._publishing.accept_operators(message, asked)
        asked.is_recorded = refusal is None
        return refusal
