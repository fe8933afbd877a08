"""`embermq run`: everything together, from the lock on the data directory to the last byte written."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop
from msgspec import Struct

from embermq import HOT_PATH
from embermq.access.authentication.errors import ChainError
from embermq.access.authentication.identity import Identity
from embermq.access.authentication.passwords import PasswordHashes
from embermq.access.authorization.rule_set import RuleSet
from embermq.admin.access_operations import BANS
from embermq.admin.ban_desk import BanDesk
from embermq.admin.operations import QUEUES
from embermq.admin.settings import GrpcLimits
from embermq.app import memory
from embermq.app.api_side import HttpSide, RpcSide
from embermq.app.audit_trail import AuditTrail
from embermq.app.authentication import Authentication, FailureBans, made_ahead
from embermq.app.authorization import RuleFiles
from embermq.app.cluster_side import ClusterSide, end_at_once
from embermq.app.config import Configuration, Settings
from embermq.app.control import ControlSide
from embermq.app.data_lock import held_data_dir
from embermq.app.desks import Desks, make_desks
from embermq.app.embedded import open_embedded
from embermq.app.errors import StartError, missing
from embermq.app.figures import Figures
from embermq.app.lease_guard import LeaseGuard
from embermq.app.log_side import Post
from embermq.app.opened import OpenedBroker
from embermq.app.other_nodes import AskedByNodes, ClusterHomes, NodesAsked
from embermq.app.pipeline_side import driver_settings, missing_for_spark
from embermq.app.places_noted import check_profile, note_places
from embermq.app.queue_admin import QueueAdmin
from embermq.app.service import BrokerService
from embermq.app.service_unit import tell_systemd
from embermq.app.settings import SQLITE
from embermq.app.slots import node_address, slot_settings
from embermq.app.standby import stand_by
from embermq.app.static_store import open_users
from embermq.edge.api_listeners import ApiListeners
from embermq.edge.listener_settings import Listener, compose_listeners
from embermq.edge.mqtt_server import MqttServer
from embermq.edge.settings import API_KINDS, Address, UnixAddress
from embermq.edge.tick_loop import TickLoop
from embermq.edge.tls import TlsFileError
from embermq.observability.client_events import LimitedEvents, LogSink, TopicSink
from embermq.observability.logs import configure_logging
from embermq.ports.errors import StoreError, TakenOver
from embermq.ports.membership import NodeLease
from embermq.ports.users import Users
from embermq.sessions.client_events import ClientEvent, Tell

if TYPE_CHECKING:
    from embermq.app.peers import Peers
    from embermq.pipeline.supervisor import PipelineSupervisor


class Terminal:
    """The controlling terminal at the start of this process. Under `nohup`, which ignores SIGHUP, none counts."""

    def __init__(self) -> None:
        self._was_there = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and _is_there()

    def is_gone(self) -> bool:
        """Whether there was one and there is none any more: the kernel takes it away before it sends SIGHUP."""
        return self._was_there and not _is_there()


def _is_there() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


LOG = logging.getLogger("embermq")
CLIENT_EVENTS_RATE_MAX = 100
"""Lines a second for each kind of client event, and a tenth of them for one client or address; what is omitted is
counted in a line of its own."""
COMMIT_LINGER_MS = 2.0
"""How long a commit may wait for company under load, less than a sync takes; it never waits when idle."""
LOGS_POLL_MS = 20
"""How often the logs of applications are looked at when they had nothing new: what they hold is seconds old."""
GC_THRESHOLDS = (50_000, 20, 50)
"""Messages in flight are many and without cycles: looking for cycles among them is seldom worth it."""

SWITCH_INTERVAL_S = 0.0005
"""How long a thread that has something for the event loop (what Kafka has confirmed, what it has sent, a commit) waits
for the interpreter while the loop is busy. Messages pass several threads: Python's 5 ms would be most of their way."""


def run_broker(found: Configuration, *, accept_loss: bool = False) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code. `accept_loss`: go on without what is damaged or missing in
    the data directory. Raises StartError for what keeps it from starting."""
    settings = found.settings
    configure_logging(settings.logging)
    if problem := missing_for_spark(settings):
        raise StartError(problem)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    os.umask(0o077)  # messages are nobody else's business on this machine
    data_dir = Path(settings.data_dir)
    leased = LeaseGuard(settings).note if settings.cluster.etcd else _nobody
    try:
        with held_data_dir(data_dir) as lock:
            check_profile(data_dir, settings)
            open_stores = partial(
                _profile,
                data_dir,
                found_log=partial(lock.note_log, accept_loss=accept_loss),
                accept_loss=accept_loss,
            )
            open_stores(settings, 0)  # what is not installed is told before anything begins
            cluster = ClusterSide(settings, leased=leased)
            try:
                return uvloop.run(_Application(found, data_dir, open_stores, cluster).run())
            finally:
                cluster.leave()
    except StoreError as error:
        raise StartError(str(error)) from error
    except MemoryError:
        memory.end()
        raise


def _profile(
    data_dir: Path, settings: Settings, slot: int, *, found_log: Callable[[int], None], accept_loss: bool
) -> OpenStores:
    """How the stores are opened that the settings name. Raises StartError when a client of theirs is not installed."""
    if settings.stores.log == SQLITE:
        return partial(open_embedded, data_dir, settings, found_log=found_log, accept_loss=accept_loss)
    try:
        from embermq.app.servers import open_servers
    except ImportError as error:
        raise StartError(f"stores.log: {settings.stores.shown().log} needs {missing(error)}") from error
    return partial(open_servers, data_dir, settings, slot)


OpenStores = Callable[[Post, RuleSet | None], OpenedBroker]
"""Opens what is stored, with how results get to the loop and the rules that are in force."""


class _Parts(Struct):
    """What one run is made of."""

    users: Users
    rule_files: RuleFiles
    embedded: OpenedBroker
    authentication: Authentication
    ticks: TickLoop
    server: MqttServer
    supervisor: PipelineSupervisor | None
    service: BrokerService
    figures: Figures
    control: ControlSide
    queues: QueueAdmin
    events: LimitedEvents


def _nobody(_lease: NodeLease) -> None:
    """Alone there is no lease."""


def _nowhere(_queue: str) -> str:
    return ""


def _make_parts(
    settings: Settings,
    data_dir: Path,
    open_stores: OpenStores,
    homes: ClusterHomes | None,
    hashes: PasswordHashes,
) -> _Parts:
    """Read what is stored and put the parts together; nobody is served yet. Raises StartError, StoreError."""
    loop = asyncio.get_running_loop()
    rule_files = RuleFiles(settings.authorization)
    rules = rule_files.read()
    if rules is not None:
        LOG.info("%s", rule_files.told(rules))
    users = open_users(settings)
    threaded = settings.log.durability == "fsync" or settings.stores.log != SQLITE
    embedded = open_stores(loop.call_soon_threadsafe if threaded else loop.call_soon, rules)
    note_places(data_dir, settings, None if homes is None else homes.slot)
    authentication = _authentication(settings, users, embedded, hashes)
    ticks = TickLoop(
        embedded.broker,
        embedded.delivery,
        embedded.ticks,
        linger_ms=COMMIT_LINGER_MS,
        poll_ms=LOGS_POLL_MS,
        clock=embedded.clock.clock,
        on_failing=_report_store,
    )
    server = MqttServer(
        embedded.broker,
        ticks,
        authentication.gate,
        settings.clients,
        homes,
    )
    if homes is not None:
        homes.divide(embedded.broker.state)
    events = LimitedEvents(LogSink(), CLIENT_EVENTS_RATE_MAX, loop)
    messages = LimitedEvents(TopicSink(embedded.broker.events), CLIENT_EVENTS_RATE_MAX, loop)
    authentication.watch(partial(_expel, embedded, ticks))
    supervisor = _supervisor(settings, data_dir)
    service = BrokerService(
        settings, data_dir, embedded=embedded, ticks=ticks, server=server, supervisor=supervisor
    )
    figures = Figures(settings, embedded, ticks, server, service)
    embedded.broker.state.tell = partial(_tell, (events.tell, messages.tell, figures.tell))
    control = ControlSide(data_dir)
    elsewhere = homes.queue_elsewhere if homes is not None else _nowhere
    queues = QueueAdmin(settings, data_dir, embedded.broker.state, ticks, elsewhere)
    service.queues = queues.desk
    return _Parts(
        users,
        rule_files,
        embedded,
        authentication,
        ticks,
        server,
        supervisor,
        service,
        figures,
        control,
        queues,
        events,
    )


class _Surfaces(Struct):
    """What operators and their tools ask, besides the control socket."""

    http: HttpSide
    grpc: RpcSide
    over_tls: ApiListeners


class _EndedEarlyError(Exception):
    """A start waits for its stores, perhaps for minutes, and nothing has begun that would have to be ended."""


def _end_early(_number: int, _frame: object) -> None:
    raise _EndedEarlyError


class _Application:
    """One run: open, serve until told to stop, close."""

    def __init__(
        self,
        found: Configuration,
        data_dir: Path,
        open_stores: Callable[[Settings, int], OpenStores],
        cluster: ClusterSide,
    ) -> None:
        self._cluster = cluster
        self._open_stores = open_stores
        self._found = found
        self._settings = found.settings
        self._data_dir = data_dir
        self._trail = AuditTrail(data_dir)
        self._stop = asyncio.Event()
        self._terminal = Terminal()
        self._reloads: set[asyncio.Task[None]] = set()
        self._exit_code = 0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        memory.end_when_out_of_memory(loop)
        gc.disable()  # what is read at start stays: looking through it again and again is most of a large start
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, _end_early)
            hashes = made_ahead(self._settings.authentication)
            if not self._cluster.join() and not await self._stand_by():
                LOG.info("stopped while another node served")
                return 0
            slot = self._cluster.slot
            open_stores = self._open_stores(self._settings, slot)
            settings = self._settings = slot_settings(self._settings, slot)
            homes = ClusterHomes(settings, self._cluster) if settings.cluster.slots > 1 else None
            parts = _make_parts(settings, self._data_dir, open_stores, homes, hashes)
        except _EndedEarlyError:
            LOG.info("stopped before it was ready")
            return 0
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        embedded, ticks, service = parts.embedded, parts.ticks, parts.service
        embedded.log_side.on_end.append(self._on_log_end)
        try:
            parts.queues.apply_file()
            desks = make_desks(
                self._found,
                embedded,
                ticks,
                service=service,
                figures=parts.figures,
                users=parts.users,
                membership=self._cluster.membership,
                trail=self._trail,
                nodes=NodesAsked(homes, settings.cluster.slots) if homes is not None else None,
            )
            self._ban_by_failures(parts, desks)
            surfaces = await self._open(parts, desks)
            await parts.control.open(desks, self._trail)
        except StartError:
            embedded.close()
            raise
        authorize = embedded.broker.authorize
        reload_rules = partial(parts.rule_files.reload, authorize)
        listeners = (parts.server, surfaces.over_tls)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup, listeners, reload_rules)
        ticks.start_polling()
        if embedded.peers is not None and homes is not None:
            embedded.peers.start(homes, parts.server.leave_node)
        ticks.wake()
        embedded.broker.system.begin(version("embermq"))
        if parts.supervisor is not None:
            await parts.supervisor.start(is_wanted=service.wants_pipeline())
        self._say_ready(service, embedded)
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        gc.enable()
        housekeeping = [
            loop.create_task(service.keep_house(self._stop, parts.figures.look)),
            loop.create_task(parts.rule_files.watch(authorize)),
        ]
        await self._stop.wait()
        tell_systemd("STOPPING=1")
        for task in housekeeping:
            task.cancel()
        await self._close(parts, surfaces)
        return self._exit_code

    def _ban_by_failures(self, parts: _Parts, desks: Desks) -> None:
        settings, desk = self._settings.authentication, desks[BANS]
        assert isinstance(desk, BanDesk)
        bans = FailureBans(desk, self._trail, failures=settings.ban_failures, lasts_s=settings.ban_s)
        parts.authentication.gate.ban = bans.ban

    async def _stand_by(self) -> bool:
        """Until the node that serves is out; False when told to stop before."""
        loop = asyncio.get_running_loop()
        gc.enable()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._cluster.stop_waiting)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup_standing_by)
        try:
            has_turn = await stand_by(self._settings, self._data_dir, self._cluster)
            return has_turn and not self._cluster.is_stopped
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
            signal.signal(
                signal.SIGHUP, signal.SIG_IGN
            )  # until it serves: systemd may ask for a reload any time
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
                signal.signal(number, _end_early)
            gc.disable()

    def _on_hangup_standing_by(self) -> None:
        """There is nothing to read again: certificates and rules are read when it serves."""
        if self._terminal.is_gone():
            self._cluster.stop_waiting()

    def _on_log_end(self, error: StoreError) -> None:
        """Nothing can be acknowledged any more in this process; the next start reads what the log has got."""
        if isinstance(error, TakenOver):
            end_at_once(str(error))
        LOG.error("the message log has failed, the broker ends: %s", error)
        self._exit_code = 1
        self._stop.set()

    async def _close(self, parts: _Parts, surfaces: _Surfaces) -> None:
        """In reverse order of need: first those who bring work, last the stores."""
        began = time.monotonic()
        parts.queues.close()
        parts.figures.stream.close()
        surfaces.over_tls.close()
        stopping = [
            parts.server.stop(),
            surfaces.http.stop(),
            surfaces.grpc.stop(),
            parts.control.stop(),
        ]
        if parts.supervisor is not None:
            stopping.append(parts.supervisor.stop())
        await asyncio.gather(*stopping)
        await self._trail.close()
        parts.ticks.stop()
        if parts.embedded.peers is not None:
            parts.embedded.peers.close()
        if parts.embedded.session_store is not None:
            await parts.embedded.session_store.close()
        parts.embedded.close()
        await parts.authentication.close()
        parts.users.close()
        parts.events.close()
        LOG.info("stopped in %.1f s", time.monotonic() - began)

    async def _open(self, parts: _Parts, desks: Desks) -> _Surfaces:
        service = parts.service
        settings, bound = self._settings, service.bound
        await self._open_for_nodes(parts.server, parts.embedded.peers, desks)
        surfaces = _Surfaces(
            HttpSide(self._data_dir, service, desks, service.refusals["http"], self._trail, bound=bound),
            RpcSide(self._data_dir, GrpcLimits(), desks[QUEUES], service.refusals["grpc"], self._trail),
            ApiListeners(parts.embedded.broker.state),
        )
        for listener in compose_listeners(
            settings.listeners, settings.listener, settings.tls, settings.websocket
        ):
            kind, address = listener.kind, listener.address
            try:
                opened = await self._open_listener(listener, parts.server, surfaces)
            except TlsFileError as error:
                raise StartError(f"{listener.key(error.name)}: {error}") from error
            except OSError as error:
                is_unasked = kind == "grpc" and settings.listeners.has_default_grpc
                if not is_unasked or error.errno != errno.EADDRINUSE:
                    raise _cannot_listen(kind, address, error) from error
                LOG.warning("gRPC is not served: another program has %s; set listeners.grpc", address)
                continue
            if opened:
                bound[kind] = [*bound.get(kind, []), *opened]
        return surfaces

    async def _open_for_nodes(self, server: MqttServer, peers: Peers | None, desks: Desks) -> None:
        cluster = self._settings.cluster
        if peers is None:
            return
        address = node_address(cluster.listen, "cluster.listen")
        try:
            asked = AskedByNodes(desks, self._trail)
            await server.open_for_nodes(
                address,
                self._cluster.slot,
                take=peers.inflow.take_unstored,
                members_of=peers.members_of,
                do=asked.do,
                figures=peers.figures,
            )
        except TlsFileError as error:
            raise StartError(f"cluster.{error.name}: {error}") from error
        except OSError as error:
            raise StartError(f"cluster.listen: cannot listen on {address}: {_told(error)}") from error

    async def _open_listener(
        self, listener: Listener, server: MqttServer, surfaces: _Surfaces
    ) -> Sequence[Address | UnixAddress]:
        if listener.kind not in API_KINDS:
            return await server.open(listener)
        side = surfaces.http if listener.kind in ("http", "https") else surfaces.grpc
        if listener.tls is not None:
            return await side.open_tls(listener, surfaces.over_tls)
        assert isinstance(listener.address, Address)
        return await side.open([listener.address])

    def _on_hangup(
        self, listeners: tuple[MqttServer, ApiListeners], reload_rules: Callable[[], Awaitable[None]]
    ) -> None:
        """SIGHUP: certificates may have been renewed, rules changed; or the terminal is gone, and who was there with
        it wants nothing left running."""
        if self._terminal.is_gone():
            LOG.info("the terminal was closed, the broker stops")
            self._stop.set()
            return
        task = asyncio.get_running_loop().create_task(_reload(listeners, reload_rules))
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    def _say_ready(self, service: BrokerService, embedded: OpenedBroker) -> None:
        if HOT_PATH.is_stale:
            LOG.warning("the hot path runs uncompiled: %s", HOT_PATH.why)
        sys.stdout.write("\n".join(service.start_up_block()) + "\n")
        if embedded.redelivered:
            LOG.info("repaired %d deliveries that the last run left unfinished", embedded.redelivered)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        tell_systemd("READY=1\nSTATUS=serves")


def _tell(tells: Sequence[Tell], event: ClientEvent) -> None:
    for tell in tells:
        tell(event)


def _authentication(
    settings: Settings, users: Users, embedded: OpenedBroker, hashes: PasswordHashes
) -> Authentication:
    try:
        return Authentication(
            users,
            settings.authentication,
            settings.clients,
            embedded.broker.state.counters,
            jwt=settings.jwt,
            http_hook=settings.http_hook,
            hashes=hashes,
        )
    except ChainError as error:
        embedded.close()
        raise StartError(str(error)) from error


def _supervisor(settings: Settings, data_dir: Path) -> PipelineSupervisor | None:
    if not settings.pipeline.enabled:
        return None
    from embermq.pipeline.supervisor import PipelineSupervisor

    return PipelineSupervisor(driver_settings(settings), data_dir)


def _cannot_listen(listener: str, address: object, error: OSError) -> StartError:
    return StartError(
        f"listeners.{listener}: cannot listen on {address}: {_told(error)}; "
        f"choose another with --set listeners.{listener}=HOST:PORT"
    )


async def _reload(
    listeners: tuple[MqttServer, ApiListeners], reload_rules: Callable[[], Awaitable[None]]
) -> None:
    await reload_rules()
    reloaded = [done for some in listeners for done in some.reload_certificates()]
    for listener, problem in reloaded:
        if problem:
            LOG.error("%s keeps its old certificates: %s", listener, problem)
        else:
            LOG.info("%s: certificates read again", listener)
    if not reloaded:
        LOG.info("SIGHUP: there is no TLS listener, so no certificates to read again")


def _told(error: OSError) -> str:
    """The system's word for it: the event loop's own text repeats the address."""
    if isinstance(error, socket.gaierror) or not error.errno:
        return error.strerror or str(error)
    return os.strerror(error.errno)


def _expel(embedded: OpenedBroker, ticks: TickLoop, unwelcome: Callable[[Identity], bool]) -> int:
    count = embedded.broker.connecting.credentials.expel(unwelcome)
    if count:
        ticks.wake()
    return count


def _report_store(text: str) -> None:
    if text:
        LOG.error("the store refuses writes, publishes are refused until it recovers: %s", text)
    else:
        LOG.warning("the store works again")
