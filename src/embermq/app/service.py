"""What the broker tells operators, and what it does once in a while."""

import asyncio
import logging
import platform
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from embermq.admin.errors import Refusals
from embermq.admin.service import Health, Readiness
from embermq.app import memory
from embermq.app.config import Settings
from embermq.app.errors import how_to_install
from embermq.app.news import LetterNews, PinNews, PipelineNews, waiting_text
from embermq.app.opened import OpenedBroker
from embermq.app.own_thread import on_own_thread
from embermq.app.settings import SQLITE
from embermq.durability.retention import DISPATCH, RetentionState
from embermq.edge.listener_settings import Listener
from embermq.edge.mqtt_server import MqttServer
from embermq.edge.settings import Address, UnixAddress
from embermq.edge.tick_loop import TickLoop
from embermq.model.position import offset_of, partition_of
from embermq.pipeline.log_look import LogLook
from embermq.pipeline.paused import pause_queries, paused_queries
from embermq.pipeline.rules.settings import RuleSettings, query_of_rule
from embermq.pipeline.settings import is_spark_installed, pin_policies
from embermq.pipeline.status import NO_APPLICATION, PipelineStatus, note_off, read_status
from embermq.ports.errors import StoreError

if TYPE_CHECKING:
    from embermq.admin.queue_desk import QueueDesk
    from embermq.observability.metrics import Metrics
    from embermq.pipeline.supervisor import PipelineSupervisor

LOG = logging.getLogger("embermq")
HOUSEKEEPING_S = 1.0
ACCOUNT_STEPS = frozenset({"password", "scram"})


class BrokerService:
    """The façade behind HTTP; see `admin.service`."""

    def __init__(
        self,
        settings: Settings,
        data_dir: Path,
        *,
        embedded: OpenedBroker,
        ticks: TickLoop,
        server: MqttServer,
        supervisor: "PipelineSupervisor | None",
    ) -> None:
        self._settings = settings
        self._data_dir = data_dir
        self._embedded = embedded
        self._ticks = ticks
        self._server = server
        self._supervisor = supervisor
        self._started_s = time.monotonic()
        self.bound: dict[str, list[Address | UnixAddress]] = {}
        self.retained: RetentionState | None = None
        """What the last round of retention found; None before the first."""
        self.refusals = {"http": Refusals(), "grpc": Refusals()}
        """What operators' listeners did not answer."""
        self.queues: QueueDesk | None = None
        """None where there are no durable queues."""
        self._pipeline: PipelineStatus | None = None
        self._pipeline_wanted = False
        self._metrics: Metrics | None = None
        self._news = PipelineNews()
        self._pins = PinNews(pin_policies(settings.pipeline))
        self._troubles: dict[str, str] = {}
        """What housekeeping cannot do now, and why."""
        self._said_failing = False
        self._said_away = False
        self._said_log = False
        self._letters = LetterNews()

    def health(self) -> Health:
        # Who asks is answered by the event loop that serves clients; a store that fails is for `ready` to tell, since
        # starting the broker anew would not help it and would end every connection.
        return Health("ok", version("embermq"), time.monotonic() - self._started_s)

    def ready(self) -> Readiness:
        failing = self._ticks.statistics().failing or self._embedded.log_side.failing
        pipeline, is_out = self._pipeline_part()
        parts = {
            "listeners": "open" if self.bound else "closed",
            "log": failing or "ok",
            "clock": self._embedded.clock.told(),
            "pipeline": pipeline,
        }
        if self._pipeline is not None:
            parts["application_logs"] = waiting_text(self._pipeline)
        apart = self._embedded.session_store
        away = apart.trouble if apart is not None else ""
        if apart is not None:
            parts["session_store"] = away or "ok"
        if self._embedded.peers is not None:
            # Told alone: a node that a balancer leaves out would read the others' logs no better.
            refused = self._embedded.peers.statistics().refused
            lost = f"ok; this node's log has refused {refused} of their messages" if refused else "ok"
            parts["other_slots"] = self._embedded.peers.failing or lost
        is_missed = is_out and self._settings.pipeline.counts_for_ready
        return Readiness(bool(self.bound) and not failing and not away and not is_missed, parts)

    def _pipeline_part(self) -> tuple[str, bool]:
        """What `ready` says of the pipeline, and whether nobody can rely on it now."""
        if self._supervisor is None:  # it may run apart from the broker
            state = self._pipeline.state if self._pipeline is not None else "down"
            return "off", state in ("down", "failed")
        found = self._supervisor.statistics()
        return ("down" if found.stalled and found.state != "failed" else found.state), found.is_out

    def wants_pipeline(self) -> bool:
        """Whether Spark has anything to do: a query besides dispatch, or an application log to fill. Once it has, it
        goes on."""
        if not self._pipeline_wanted:
            queries, sessions = self._settings.pipeline.queries, self._embedded.broker.state.sessions.loaded
            self._pipeline_wanted = (
                bool(self._settings.rules)
                or any(query != DISPATCH for query in queries)
                or (DISPATCH in queries and any(session.is_application for session in sessions))
            )
        return self._pipeline_wanted

    @property
    def has_pipeline(self) -> bool:
        """Whether it is this broker that runs it."""
        return self._supervisor is not None and self._settings.pipeline.enabled

    def check_rules(self, rules: Mapping[str, RuleSettings]) -> None:
        """Raise PipelineSettingsError for what the pipeline cannot have."""
        assert self._supervisor is not None, "the pipeline is this broker's"
        self._supervisor.check_rules(rules)

    def renew_rules(self, rules: Mapping[str, RuleSettings]) -> None:
        """Have the pipeline go on with these."""
        assert self._supervisor is not None, "the pipeline is this broker's"
        self._settings = msgspec.structs.replace(self._settings, rules=rules)
        self._supervisor.renew_rules(rules)

    def pipeline_status(self) -> Mapping[str, object]:
        found: dict[str, object] = msgspec.to_builtins(self._pipeline or read_status(self._data_dir))
        if self.retained is not None:
            found["log"] = shown_retention(self.retained)
        return found

    def metrics_text(self) -> str:
        from embermq.observability.metrics import (  # only loaded when somebody scrapes
            Metrics,
            MetricsSnapshot,
        )

        if self._metrics is None:
            self._metrics = Metrics()
        state = self._embedded.broker.state
        apart = self._embedded.session_store
        return self._metrics.text(
            MetricsSnapshot(
                counters=state.counters,
                build={
                    "version": version("embermq"),
                    "python": platform.python_version(),
                    "durability": self._settings.log.durability,
                },
                refusals={listener: found.counts for listener, found in self.refusals.items()},
                connections=self._server.connections,
                sessions=len(state.sessions),
                sessions_loaded=len(state.sessions.loaded),
                sessions_behind=len(self._embedded.delivery.device.behind),
                quotas=state.quotas,
                subscriptions=len(state.router),
                retained=len(state.retained),
                application_readers=len(self._embedded.delivery.applications),
                application_parked=len(self._embedded.parking),
                application_lost=self._embedded.delivery.applications.lost,
                ticks=self._ticks.statistics(),
                clock=self._embedded.clock.clock.statistics(),
                server=self._server.statistics(),
                retention=self.retained,
                pipeline=self._pipeline,
                supervisor=self._supervisor.statistics() if self._supervisor is not None else None,
                session_store=apart.statistics() if apart is not None else None,
                receipts=self._embedded.log_side.receipts,
                alerts=self._embedded.alerts.statistics(),
                queues=self.queues.figures() if self.queues is not None else None,
                cluster=self._embedded.peers.statistics() if self._embedded.peers is not None else None,
            )
        )

    @property
    def pipeline(self) -> PipelineStatus | None:
        """As it was seen last; None before the first look."""
        return self._pipeline

    async def keep_house(self, stop: asyncio.Event, look: Callable[[], None]) -> None:
        """Trim the log and look at the pipeline, until told to stop; `look` at the figures too."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._measure(stop, look))
            tasks.create_task(self._keep_log(stop))
            tasks.create_task(self._look_around(stop))
            tasks.create_task(self._watch_clock(stop))

    async def _look_around(self, stop: asyncio.Event) -> None:
        """Nothing here waits for the log."""
        counters, log_side, told = self._embedded.broker.state.counters, self._embedded.log_side, 0
        while not stop.is_set():
            with self._going_on("looking at the pipeline"):
                await self._look_at_pipeline()
            with self._going_on("looking at stores"):
                self._say_failing()
                self._say_away()
                self._say_log()
                self._say_damaged()
                if self.queues is not None:
                    self._letters.look(self.queues.letter_room())
            counters.unexpected_errors += log_side.failures - told
            told = log_side.failures
            await asyncio.sleep(HOUSEKEEPING_S)

    async def _measure(self, stop: asyncio.Event, look: Callable[[], None]) -> None:
        while not stop.is_set():
            with self._going_on("measuring"):
                look()
            await asyncio.sleep(HOUSEKEEPING_S)

    async def _keep_log(self, stop: asyncio.Event) -> None:
        """Rounds of retention; one may take long while the log does not answer."""
        while not stop.is_set():
            with self._going_on("retention"):
                await self._retain()
            await asyncio.sleep(HOUSEKEEPING_S)

    async def _retain(self) -> None:
        log_side = self._embedded.log_side
        state = self._embedded.broker.state
        not_held = set(paused_queries(self._data_dir))
        if self._supervisor is not None and not self.wants_pipeline():
            # Nobody is owed what dispatch has not read. Who comes after this line is owed nothing below the floor.
            not_held.add(DISPATCH)
        round_of_retention = partial(
            self._embedded.retention.run,
            log_side.dispatcher_floor,
            [query for query in log_side.holding(state.sessions.loaded) if query not in not_held],
            self._age_ms(),
        )
        retained = await on_own_thread(round_of_retention, "retention")
        pause_queries(self._data_dir, retained.to_pause)
        for level, text in self._pins.since(retained):
            LOG.log(level, text)
        self.retained = retained
        state.refuse_all = retained.refuse_all
        state.refused_generations = retained.refused_generations

    def _age_ms(self) -> int:
        """The present in the time that the log's records have: broker time in broker.db, dates in Kafka. While there
        are none, nothing is old."""
        clock = self._embedded.clock.clock
        now_ms = clock.now_ms()
        if not self._embedded.log_side.has_dates:
            return now_ms
        return now_ms + clock.offset_ms if clock.offset_ms is not None else 0

    async def _watch_clock(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self._embedded.clock.look()
            await asyncio.sleep(HOUSEKEEPING_S)

    @contextmanager
    def _going_on(self, doing: str) -> Iterator[None]:
        """What goes wrong is told once for as long as it does. Errors that nobody foresaw come with their trace, and
        are counted."""
        try:
            yield
        except (StoreError, OSError, sqlite3.Error) as error:
            if doing not in self._troubles:
                LOG.warning("%s failed and is tried again: %s", doing, error)
            self._troubles[doing] = str(error)
        except MemoryError:
            memory.end()
            raise
        except Exception as error:
            self._embedded.broker.state.counters.unexpected_errors += 1
            if self._troubles.get(doing) != repr(error):
                LOG.exception("%s failed and is tried again", doing)
            self._troubles[doing] = repr(error)
        else:
            self._troubles.pop(doing, None)

    async def _look_at_pipeline(self) -> None:
        log_side = self._embedded.log_side
        sessions = self._embedded.broker.state.sessions.loaded
        rules = map(query_of_rule, self._settings.rules)  # which hold back nothing
        look = log_side.look((*log_side.holding(sessions), *rules))
        has_applications = any(session.is_application for session in sessions)
        is_off = self._supervisor is None and not has_applications and not self._settings.rules
        self._pipeline = await on_own_thread(partial(self._pipeline_now, look, is_off), "pipeline look")
        if self._supervisor is None:
            is_wanted = not self._pipeline.pid and has_applications
            news = self._news.without_pipeline(self._pipeline.waiting if is_wanted else 0)
        else:
            self._supervisor.note(self._pipeline, is_wanted=self.wants_pipeline())
            news = self._news.since(self._supervisor.statistics(), self._pipeline)
        for level, text in news:
            LOG.log(level, text)

    def _pipeline_now(self, look: LogLook | None, is_off: bool) -> PipelineStatus:
        if self._supervisor is None:
            with suppress(OSError):  # a full disk: what it was is shown
                note_off(self._data_dir, is_off=is_off)
        return read_status(self._data_dir, None, look)

    def _say_failing(self) -> None:
        """One line when application logs cannot be read, made or deleted, and one when they can again."""
        logs = self._embedded.log_side.application_logs
        failing = self._embedded.delivery.applications.failing or (logs.failing if logs is not None else "")
        if failing and not self._said_failing:
            LOG.error("application logs wait: %s", failing)
        elif self._said_failing and not failing:
            LOG.info("application logs can be read again")
        self._said_failing = bool(failing)

    def _say_away(self) -> None:
        """One line when the session store does not answer, and one when it does again."""
        apart = self._embedded.session_store
        if apart is None:
            return
        away = apart.writer.failing
        if away and not self._said_away:
            LOG.error("the session store does not answer, its writes wait in memory: %s", away)
        elif self._said_away and not away:
            LOG.info("the session store answers again")
        self._said_away = bool(away)

    def _say_damaged(self) -> None:
        """One line for each record that is set aside."""
        for what in self._embedded.broker.state.damaged.take():
            LOG.error("a damaged record is left out: %s", what)

    def _say_log(self) -> None:
        """One line when ticks wait for a log of its own, and one when they are over."""
        failing = self._embedded.log_side.failing
        if failing and not self._said_log:
            LOG.error("the message log does not answer, acknowledgements wait: %s", failing)
        elif self._said_log and not failing:
            LOG.warning("the message log works again")
        self._said_log = bool(failing)

    def start_up_block(self) -> list[str]:
        """What a person sees first."""
        settings = self._settings
        mqtt = self.bound.get("mqtt", [])
        log_side = self._embedded.log_side
        pipeline = "starting (Spark needs some seconds; MQTT is served meanwhile)"
        if self._supervisor is None:
            pipeline = "off" if is_spark_installed() else f"off; Spark: {how_to_install('pipeline')}"
        elif not self.wants_pipeline():
            pipeline = f"waiting: {NO_APPLICATION}"
        lines = [f"EmberMQ {version('embermq')}"]
        for listener, addresses in self.bound.items():
            lines.append(f"  {listener:<10} {', '.join(map(str, addresses))}")
        pages = [f"{scheme}://{each}/" for scheme in ("http", "https") for each in self.bound.get(scheme, [])]
        lines += [
            *([f"  {'dashboard':<10} {pages[0]}"] if pages else []),
            f"  {'data':<10} {self._data_dir.absolute()}",
            *([f"  {'log':<10} {log_side.place}"] if log_side.place else []),
            *([f"  {'sessions':<10} {apart.place}"] if (apart := self._embedded.session_store) else []),
            *([f"  {'static':<10} {static}"] if (static := settings.stores.shown().static) != SQLITE else []),
            f"  {'durability':<10} {log_side.meaning}",
            f"  {'pipeline':<10} {pipeline}",
        ]
        if mqtt:
            there = f"-p {mqtt[0].port}" if isinstance(mqtt[0], Address) else f"--unix {mqtt[0].path}"
            if "anonymous" not in settings.authentication.chain:
                there += " -u NAME -P PASSWORD"
            lines += [
                f"  {'try':<10} mosquitto_sub {there} -t 'hello/#' -v",
                f"  {'':<10} mosquitto_pub {there} -t hello/world -q 1 -m hi",
            ]
        elsewhere = [listener for listener in self._server.listeners if not listener.address.is_loopback]
        if any(map(self._lets_anyone_in, elsewhere)):
            lines.append("  warning    anonymous clients are accepted from other machines (allow_anonymous)")
        elif elsewhere and ACCOUNT_STEPS.intersection(settings.authentication.chain):
            lines.append("  accounts   are required except on loopback: embermq users add NAME")
        return lines

    def _lets_anyone_in(self, listener: Listener) -> bool:
        if "anonymous" not in self._settings.authentication.chain:
            return False
        said = listener.own.allow_anonymous
        return self._settings.clients.allow_anonymous if said is None else said


def shown_retention(state: RetentionState) -> dict[str, Any]:
    """What people are shown of it: partition and offset of each position apart."""
    found: dict[str, Any] = msgspec.to_builtins(state)
    for name in ("start", "end"):
        position = found[f"{name}_offset"]
        found |= {f"{name}_partition": partition_of(position), f"{name}_offset": offset_of(position)}
    for pin in found["pins"]:
        position = pin["next_offset"]
        pin |= {"partition": partition_of(position), "next_offset": offset_of(position)}
    return found
