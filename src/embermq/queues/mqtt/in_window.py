"""What queues put into the window of a session: messages of durable queues, and responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embermq.sessions.session import Delivery

if TYPE_CHECKING:
    from embermq.queues.mqtt.responses import ResponseQueue
    from embermq.queues.mqtt.subscription import AckMode
    from embermq.queues.queue import ConsumerDelivery


class QueueDelivery(Delivery, gc=False, kw_only=True):
    """A message of a queue on its way: `owed` is the core's, `mode` what settles it."""

    owed: ConsumerDelivery
    mode: AckMode
    is_written: bool = False


class ResponseDelivery(Delivery, gc=False, kw_only=True):
    """A response in the client's window."""

    queue: ResponseQueue
