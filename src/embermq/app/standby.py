"""A node that stands by while another one serves its cluster: it answers operators and is in nobody's way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

from embermq import __version__
from embermq.admin.cluster_desk import ClusterDesk
from embermq.admin.errors import Refusals
from embermq.admin.operations import CLUSTER
from embermq.admin.service import Health, Readiness
from embermq.admin.trail import NO_TRAIL
from embermq.app.api_side import HttpSide
from embermq.app.cluster_side import ClusterSide
from embermq.app.config import Settings
from embermq.app.control import ControlSide
from embermq.app.errors import StartError
from embermq.app.other_nodes import ClusterHomes, NodesAsked
from embermq.app.own_thread import on_own_thread
from embermq.app.service_unit import tell_systemd
from embermq.edge.listener_settings import compose_listeners
from embermq.edge.settings import Address


class StandbyService:
    """What it tells: that it lives, is not ready, and why."""

    def __init__(self, cluster: ClusterSide) -> None:
        self._cluster = cluster
        self._started_s = time.monotonic()

    def health(self) -> Health:
        return Health("ok", __version__, time.monotonic() - self._started_s)

    def ready(self) -> Readiness:
        whose = self._cluster.standing_by
        why = (
            f"stands by: node {whose} serves"
            if whose
            else "stands by: etcd has to answer for the time of a lease"
        )
        return Readiness(False, {"cluster": why})

    def metrics_text(self) -> str:
        return ""

    def pipeline_status(self) -> Mapping[str, object]:
        return {}


async def stand_by(settings: Settings, data_dir: Path, cluster: ClusterSide) -> bool:
    """Serve `/health`, `/ready` and `cluster status` until this node's turn has come, True, or it is told to stop. Its
    listeners over TLS stay closed. Raises StartError."""
    slots = settings.cluster.slots
    nodes = NodesAsked(ClusterHomes(settings, cluster), slots, serves=False) if slots > 1 else None
    desks = {CLUSTER: ClusterDesk(cluster.membership, None, nodes)}
    http = HttpSide(data_dir, StandbyService(cluster), desks, Refusals(), NO_TRAIL, bound={})
    control = ControlSide(data_dir)
    try:
        for listener in compose_listeners(
            settings.listeners, settings.listener, settings.tls, settings.websocket
        ):
            if listener.kind == "http" and isinstance(listener.address, Address):
                try:
                    await http.open([listener.address])
                except OSError as error:
                    raise StartError(
                        f"listeners.http: cannot listen on {listener.address}: {error}"
                    ) from error
        await control.open(desks, NO_TRAIL)
        tell_systemd("READY=1\nSTATUS=stands by")
        return await on_own_thread(cluster.stand_by, "stands by")
    finally:
        await asyncio.gather(http.stop(), control.stop())
