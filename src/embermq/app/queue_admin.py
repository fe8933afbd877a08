"""Durable queues for their operators: the desk, the file of queues, gRPC."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from embermq.admin.durable import TickDriver
from embermq.admin.errors import OperationRefused, QueueElsewhere
from embermq.admin.queue_desk import QueueDesk
from embermq.app.api_tokens import token_access
from embermq.app.config import Settings
from embermq.app.queue_file import read_queue_file
from embermq.queues.errors import SettingsRefused
from embermq.queues.mqtt.mqtt_queues import MqttQueues
from embermq.queues.settings import OFF
from embermq.sessions.state import BrokerState

if TYPE_CHECKING:
    from embermq.admin.rpc_listener import RpcDoor
    from embermq.admin.rpc_server import RpcServer
    from embermq.admin.trail import Trail

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

    async def rpc_server(self, desk: object, door: RpcDoor, trail: Trail) -> RpcServer:
        """For gRPC, by token; its library is loaded away from the event loop."""
        kind = await asyncio.to_thread(_rpc_server_class)
        return kind(desk, token_access(self._data_dir), door, trail)

    def close(self) -> None:
        """What goes on by itself ends."""
        if self.desk is not None:
            self.desk.close()


def _check_here(elsewhere: Callable[[str], str], name: str) -> None:
    if text := elsewhere(name):
        raise QueueElsewhere(text)


def _rpc_server_class() -> type[RpcServer]:
    # It would write to standard error what any stranger does, and has handlers for forks that are no use to us.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    from embermq.admin.rpc_server import RpcServer

    return RpcServer
