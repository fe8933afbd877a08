"""Which member of a shared subscription (`$share`) gets the next message [MQTT 5.0, 4.8.2]."""

from embermq.routing.router import Receiver


def choose_member(receivers: list[Receiver], turn: int) -> Receiver | None:
    """The next member with room; else the next that keeps messages; else None."""
    count = len(receivers)
    fallback: Receiver | None = None
    for step in range(count):
        receiver = receivers[(turn + step) % count]
        session = receiver.session
        is_here = session.link is not None and not session.link.closing
        if is_here and not session.backlog and len(session.window) < session.window_max:
            return receiver
        if fallback is None and ((session.persistent and receiver.qos) or is_here):
            fallback = receiver
    return fallback
