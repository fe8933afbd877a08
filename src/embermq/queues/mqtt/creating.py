"""Who may make a queue by using it [queues-29]."""

from embermq.authorization.rule_set import Permissions
from embermq.protocol.reason_codes import ReasonCode
from embermq.queues.errors import QueueRefusal
from embermq.queues.names import QUEUE_PREFIX
from embermq.queues.queues import Queues
from embermq.topics.names import shown


class Creating:
    """Asked before the first message of a queue, or its first consumer."""

    def __init__(self, core: Queues) -> None:
        self._core = core

    def check(self, name: str, permissions: Permissions | None) -> None:
        """Raise QueueRefusal unless the queue is there or may be made."""
        if name in self._core:
            return
        if permissions is not None and not permissions.may_create(QUEUE_PREFIX + name):
            raise QueueRefusal(
                f"there is no queue {shown(name)}, and making it is not allowed", ReasonCode.NOT_AUTHORIZED
            )
