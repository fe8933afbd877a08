"""What the parts of the broker share."""

from collections.abc import Callable

from embermq.access.authorization.rule_set import Permissions, RuleSet
from embermq.access.authorization.rules import EVENTS_PREFIX, Principal
from embermq.access.authorization.settings import AuthorizationSettings
from embermq.access.bans import NOBODY
from embermq.formats.application_logs import ApplicationLogNames
from embermq.formats.damaged_records import DamagedRecords
from embermq.model.counters import Counters
from embermq.model.durations import Durations
from embermq.model.session import RetainedRow
from embermq.mqtt.topics.topic_tree import TopicTree
from embermq.ports.application_logs import ApplicationLogs
from embermq.ports.errors import StoreError
from embermq.routing.retained import RetainedMessages
from embermq.routing.router import Router
from embermq.routing.shared_logs import SharedLogReaders, SharedLogs
from embermq.sessions import client_events
from embermq.sessions.application_sessions import ApplicationSessions
from embermq.sessions.delivery_path import DeliveryPath
from embermq.sessions.durable_queues import DurableQueues
from embermq.sessions.group_queues import GroupQueues
from embermq.sessions.link import Link
from embermq.sessions.listener_terms import Terms
from embermq.sessions.node_share import NodeShare
from embermq.sessions.quotas import Quotas
from embermq.sessions.session import Session
from embermq.sessions.session_table import SessionTable
from embermq.sessions.settings import MqttSettings
from embermq.sessions.tick import Tick
from embermq.sessions.timers import Timers

NO_LIMIT = (1 << 63) - 1
CACHED_TOPICS_MAX = 128
"""Decisions of rules that are remembered for each client and action; past it they are made anew."""

GENERATIONS_RESERVED = 200_000
GENERATIONS_LEFT = 100_000
"""Generations are reserved in store by the thousand, so that a clean session costs no write of its own; with fewer left
the next ones are. So many clients may connect while Redis is away: then records wait for it, too."""


class BrokerState:
    """Sessions, subscriptions and retained messages in memory, and the present tick."""

    def __init__(
        self, settings: MqttSettings, tick: Tick, authorization: AuthorizationSettings | None = None
    ) -> None:
        self.settings = settings
        takes_empty = "empty-client-ids" not in settings.unavailable
        self._terms = Terms(settings.max_qos, settings.protocol_versions, takes_empty)
        self.authorization = authorization or AuthorizationSettings()
        self.rules: RuleSet | None = None
        """None: everybody may do everything, and nothing is asked."""
        self.tick = tick
        self.share = NodeShare()  # of a cluster's node that others serve beside
        self.direct: DeliveryPath
        """To sessions that end with their connection."""
        self.durable: DeliveryPath
        """To persistent sessions."""
        self.counters = Counters()
        self.quotas = Quotas(settings, self.counters)
        self.tell: client_events.Tell = client_events.ignore
        """Told of clients that come, leave and are refused something."""
        self.bans = NOBODY  # who may not come in
        self.damaged = DamagedRecords(self.counters)
        self.timers = Timers()
        self.sessions = SessionTable(tick, self.timers, self.permissions)
        self.router = Router(self.sessions.session_of)
        self.groups = GroupQueues(self)
        self.retained = RetainedMessages(tick, self.timers, self.counters)
        self.system: TopicTree[RetainedRow] = TopicTree()
        """Messages below $SYS: retained as far as subscriptions can tell, and never stored."""
        self.parts_sent = 0
        """Pieces of packets that connections have written: three a PUBLISH of QoS 1 and 2, two one of QoS 0, one any
        other packet."""
        self.device_delays, self.application_delays = Durations(), Durations()
        """From the accept of a tick's or pack's oldest message until it was written to its subscribers."""
        self.log_end = 0  # the offset that the first record of the next tick gets
        self.committing_records = 0
        """Records of the tick that is being committed."""
        self.refuse_all = False
        """Readers hold back too much of the log: no QoS 1 or 2 publish is taken."""
        self.refused_generations: frozenset[int] = frozenset()
        """APPLICATION sessions for which nothing more is taken."""
        self.session_store_full = False
        """Too much waits for a session store of its own: what can wait in the log is left there."""
        self.is_store_away: Callable[[str], bool] = _never
        """Whether that store does not answer for a client, by its id, or is far too full for anybody."""
        self.is_queue_away: Callable[[str], bool] = _never
        """Whether it is known not to answer for a durable queue, by its name."""
        self.is_queue_store_away: Callable[[str], bool] = _never
        """The same, or it is far too full for anybody."""
        self.record_bytes_sure = NO_LIMIT
        """The log takes every record of so many bytes; of a larger one `record_objection` tells."""
        self.record_objection: Callable[[bytes], str] = _takes_all
        self.store_failure: StoreError | None = None
        """Why the last commit failed; None when it did not. Nothing that has to be stored is begun."""
        self.log_late = False
        """The tick that is being committed takes very long: no CONNECT that would have to wait for it is taken."""
        self.log_full = False
        """And too much waits behind it: clients with messages of QoS 1 and 2 are sent away."""
        self.connect_wait_ms = 0
        """How long a CONNECT waits for that store; 0 without one: what is in the log is stored then."""
        self.application_logs: ApplicationSessions | None = None
        """Told of the end of APPLICATION sessions; None where their logs are part of the message log."""
        self.queues: DurableQueues | None = None
        """Durable queues; None where topics below `$queue/` are as any other."""
        self.strict_names: ApplicationLogNames | None = None
        """Names of application logs, when an APPLICATION client whose id cannot be one is refused."""
        self.restored_ids: set[tuple[int, int]] = set()
        """Generation and packet id of QoS 2 messages held at the start. Their release may be lost."""
        self.replays: dict[str, int] = {}
        """Id of a replay -> number of its next message, kept for ever: a piece that comes late is known as a repeat."""
        self.generation_next = self._generations_reserved = self._generations_stored = 1

    @property
    def common_terms(self) -> Terms:
        """What clients may do where their listener says nothing else."""
        return self._terms

    def terms_of(self, link: Link) -> Terms:
        """What the client of a connection may do at all."""
        return link.terms or self._terms

    def stood_still(self) -> None:
        """The process did nothing for a while, and another one may serve by now [cluster-16]."""
        if self.queues is not None:
            self.queues.stood_still()
        if self.share.members is not None:
            self.share.members.stood_still()

    def must_wait(self, client_id: str) -> bool:
        """Whether the session store may be asked for nothing more for this client now."""
        return self.session_store_full and self.is_store_away(client_id)

    def must_queue_wait(self, name: str) -> bool:
        """Whether that store may be asked for nothing more for this durable queue now."""
        return self.session_store_full and self.is_queue_store_away(name)

    @property
    def drains(self) -> bool:
        """Whether sessions are served from what is stored although nothing can be stored. Not with a session store of
        its own: what that one has not been shown yet cannot be told from what it has."""
        return self.store_failure is not None and not self.connect_wait_ms

    def path(self, session: Session) -> DeliveryPath:
        """The way by which messages reach a session."""
        return self.durable if session.persistent else self.direct

    def permissions(self, principal: Principal) -> Permissions | None:
        """What a client may do; None when there are no rules."""
        if self.rules is None:
            return None
        return Permissions(self.rules, principal, CACHED_TOPICS_MAX)

    def may_subscribe(self, permissions: Permissions | None, topic_filter: str) -> bool:
        """Whether a client with these permissions may, to a valid filter without `$share/<group>/`. Without rules only
        what needs a rule of its own is denied."""
        if permissions is None:
            return not topic_filter.startswith(EVENTS_PREFIX)
        return permissions.may_subscribe(topic_filter)

    @property
    def shared_logs(self) -> SharedLogs | None:
        """Logs of shared subscriptions of applications; None where those use the device queue."""
        return self.router.shared_logs

    def share_by_logs(self, logs: ApplicationLogs, partitions: int, readers: SharedLogReaders) -> SharedLogs:
        """From now on shared subscriptions of applications have logs. Called before sessions are restored."""
        shared_logs = self.router.shared_logs = SharedLogs(self, logs, partitions, readers)
        return shared_logs

    @property
    def offset_next(self) -> int:
        """The offset that a record accepted now gets; a subscription made now matches from here on."""
        return self.log_end + self.committing_records + len(self.tick.writes.records)

    @property
    def packets_sent(self) -> int:
        """Packets that connections have written."""
        counters = self.counters
        return max(0, self.parts_sent - 3 * counters.messages_sent + counters.messages_sent_qos_0)

    def new_generation(self) -> int:
        """A number that no session has had."""
        generation = self.generation_next
        self.generation_next += 1
        if generation + GENERATIONS_LEFT >= self._generations_reserved:
            self._generations_reserved = generation + GENERATIONS_RESERVED
            self.tick.writes.generation_reserved = self._generations_reserved
        return generation

    @property
    def generations_reserved(self) -> int:
        """Generations below it may be in use; what is in store."""
        return self._generations_reserved

    @property
    def generations_stored(self) -> int:
        """Those below it were reserved before this start; what the start takes itself is stored with its first tick."""
        return self._generations_stored

    def set_generations(self, reserved: int) -> None:
        """Start after what may have been used."""
        self.generation_next = self._generations_reserved = self._generations_stored = reserved


def _never(_name: str) -> bool:
    return False


def _takes_all(_record: bytes) -> str:
    return ""
