"""Who may make a queue, or a group, by using it [queues-29]."""

from embermq.access.authorization.rule_set import Permissions
from embermq.mqtt.topics.names import shown
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.queues.errors import QueueRefusal
from embermq.queues.names import QUEUE_PREFIX
from embermq.queues.queues import Queues
from embermq.queues.settings import BrokerQueueSettings


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
