"""Everything that operators can ask and do, put together: the desks of the table of operations."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from embermq.admin.access_operations import (
    ACCOUNTS,
    BANS,
    PIPELINE_RULES,
    RULES,
    SETTINGS,
    TOKENS,
    TRAIL,
)
from embermq.admin.ban_desk import BanDesk
from embermq.admin.cluster_desk import ClusterDesk
from embermq.admin.forwarding import OtherNodes, SharedDesk
from embermq.admin.message_desk import MessageDesk
from embermq.admin.operations import (
    ARCHIVE,
    BROKER,
    CLUSTER,
    MESSAGES,
    PARKED,
    QUEUES,
    REPLAYS,
    RULE_FEEDS,
    SESSIONS,
)
from embermq.admin.parked_desk import ParkedDesk
from embermq.admin.replay_desk import ReplayDesk, RuleFeedDesk
from embermq.admin.session_desk import SessionDesk
from embermq.app.access_desks import AccountsAsked, RulesAsked, SettingsAsked, TokensAsked
from embermq.app.accounts import Accounts
from embermq.app.archive_desk import ArchiveAsked
from embermq.app.audit_trail import AuditTrail
from embermq.app.bans import KIND, BanFile, SharedBans
from embermq.app.config import Configuration
from embermq.app.figures import Figures
from embermq.app.opened import OpenedBroker
from embermq.app.pipeline_rules import PipelineRules
from embermq.app.service import BrokerService
from embermq.edge.tick_loop import TickLoop
from embermq.ports.membership import Membership
from embermq.ports.users import Users
from embermq.sessions.state import BrokerState

Desks = Mapping[str, object]
"""By the name that operations have for them; None for a part that is switched off."""


def make_desks(
    found: Configuration,
    opened: OpenedBroker,
    ticks: TickLoop,
    *,
    service: BrokerService,
    figures: Figures,
    users: Users,
    membership: Membership,
    trail: AuditTrail,
    nodes: OtherNodes | None,
) -> Desks:
    """Those of one broker, which is told of its bans. `nodes` are the others that serve, None where there are none.
    Raises StartError."""
    broker = opened.broker
    sessions = SessionDesk(broker, ticks, lambda: service.retained, opened.log_life)

    def shared(desk: object) -> object:
        return SharedDesk(desk, nodes) if nodes is not None and desk is not None else desk

    return {
        ACCOUNTS: AccountsAsked(Accounts(users)),
        TOKENS: TokensAsked(Path(found.settings.data_dir)),
        RULES: RulesAsked(broker.state),
        PIPELINE_RULES: PipelineRules(found.settings, service),
        BANS: _bans(Path(found.settings.data_dir), broker.state, ticks, membership),
        SETTINGS: SettingsAsked(found),
        BROKER: figures,
        QUEUES: shared(service.queues),
        SESSIONS: shared(sessions),
        MESSAGES: shared(MessageDesk(broker, ticks)),
        ARCHIVE: ArchiveAsked(found.settings),
        PARKED: shared(ParkedDesk(broker, ticks, opened.parking)),
        CLUSTER: shared(ClusterDesk(membership, figures.of_node, nodes)),
        REPLAYS: ReplayDesk(broker, ticks),
        RULE_FEEDS: RuleFeedDesk(broker, ticks),
        TRAIL: trail,
    }


def _bans(data_dir: Path, state: BrokerState, ticks: TickLoop, membership: Membership) -> BanDesk:
    """Raises StartError."""
    post, shared = asyncio.get_running_loop().call_soon_threadsafe, membership.texts(KIND)
    if shared is None:
        alone = BanFile(data_dir, post)
        desk = BanDesk(state, ticks, alone)
        alone.begin(desk.told)
        return desk
    bans = SharedBans(shared, data_dir, post)
    desk = BanDesk(state, ticks, bans)
    bans.begin(desk.told, state.tick.date_ms)
    return desk
