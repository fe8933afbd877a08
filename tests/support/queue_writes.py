"""What durable queues want stored, between one commit and the next, where no tick of a broker gathers it."""

from __future__ import annotations

from embermq.model.queue_rows import QueueWrites


class GatheredWrites:
    """To be given to `Queues`, which asks it for the writes of the present."""

    def __init__(self) -> None:
        self.present = QueueWrites()

    def __call__(self) -> QueueWrites:
        return self.present

    def take(self) -> QueueWrites:
        """What has gathered; the next commit's begins."""
        writes, self.present = self.present, QueueWrites()
        return writes

    def give_back(self, refused: QueueWrites) -> None:
        """They could not be stored, and their publishes are withdrawn: what else they wanted is the next one's too."""
        self.present.put_before(refused)
