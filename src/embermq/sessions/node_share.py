"""What a node leaves to the others of its cluster; alone it leaves them nothing."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from embermq.model.message import Message
from embermq.routing.retain_order import RetainOrder
from embermq.sessions.durable_queues import OffsetFound


def _always(_client_id: str) -> bool:
    return True


def _nobody(_message: Message) -> None:
    """There is nobody else."""


class NodeShare(Struct):
    """`is_own` tells whether a client belongs to this node, by its id; `own_id` makes an id that does, of one that was
    to be assigned. `relay` sends a message that gets no record to the others. `retain_order` says which retained
    message is the newer one, and `catch_up` calls back when what the others have taken up to now is here; both are None
    where there are no others."""

    is_own: Callable[[str], bool] = _always
    own_id: Callable[[str], str] = str
    relay: Callable[[Message], None] = _nobody
    retain_order: RetainOrder | None = None
    catch_up: Callable[[OffsetFound], None] | None = None
