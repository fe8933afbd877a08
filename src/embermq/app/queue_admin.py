"""Durable queues for their operators: the desk and the file of queues."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from embermq.admin.durable import TickDriver
from embermq.admin.errors import OperationRefused, QueueElsewhere
from embermq.admin.queue_desk import QueueDesk
from embermq.app.config import Settings
from embermq.app.queue_file import read_queue_file
from embermq.queues.errors import SettingsRefused
from embermq.queues.mqtt.mqtt_queues import MqttQueues
from embermq.queues.settings import OFF
from embermq.sessions.state import BrokerState

LOG = logging.getLogger("embermq")


class QueueAdmin:
    """Of one broker. `desk` is None where queues are switched off."""

    def __init__(
        self,
        settings: Settings,
        data_dir: Path,
        state: BrokerState,
        ticks: TickDriver,
        elsewhere: Callable[[str], str],
    ) -> None:
        """`elsewhere` says of a queue that another slot of the cluster has which node to ask, "" of all others."""
        self._settings = settings
        self._data_dir = data_dir
        self.desk: QueueDesk | None = None
        if isinstance(state.queues, MqttQueues) and settings.queues.enabled:
            self.desk = QueueDesk(
                state.queues.core,
                state.tick,
                ticks,
                state.queues.bodies,
                queues_max=settings.queues.queues_max,
                groups_max=settings.queues.groups_max,
                check_here=partial(_check_here, elsewhere),
            )

    def apply_file(self) -> None:
        """What `queues.file` says. What a queue cannot take now, since it is not empty, is told and left: only a broker
        that runs can empty it. Raises ValueError when the file has become unreadable since the settings were read."""
        if not self._settings.queues.file:
            return
        if self.desk is None:
            LOG.warning("queues.file is not applied: %s", OFF)
            return
        for settings in read_queue_file(self._settings.queues.file):
            try:
                self.desk.apply(settings)
            except QueueElsewhere:
                continue  # that one's node has the same file, or should
            except (SettingsRefused, OperationRefused) as refusal:
                LOG.error("queues.file: %s; the queue stays as it is", refusal)

    def close(self) -> None:
        """What goes on by itself ends."""
        if self.desk is not None:
            self.desk.close()


def _check_here(elsewhere: Callable[[str], str], name: str) -> None:
    if text := elsewhere(name):
        raise QueueElsewhere(text)
