"""Samples of delivery latency for the traffic windows: from accept to the client's acknowledgement."""

from embermq.formats.receipts import SAMPLE
from embermq.mqtt.topics.names import first_level
from embermq.sessions.session import Delivery, Session
from embermq.sessions.state import BrokerState

SAMPLE_EVERY = 16
"""One settled delivery in so many is sampled."""
ROOT_BYTES_MAX = 255


class Receipts:
    """Whoever settles deliveries counts `until_next` down, and has the one noted with which it is 0."""

    def __init__(self) -> None:
        self.until_next = SAMPLE_EVERY

    def note(self, state: BrokerState, session: Session, delivery: Delivery) -> None:
        """Write down that a client has acknowledged a live or stored message, and begin to count anew."""
        self.until_next = SAMPLE_EVERY
        message = delivery.message
        if not message.accepted_ms:
            return  # only its packet id was left
        latency_us = min(max(0, state.tick.date_ms - message.accepted_ms) * 1000, 0xFFFFFFFF)
        root = first_level(message.topic).encode()
        if len(root) > ROOT_BYTES_MAX:  # cut between two characters
            root = root[:ROOT_BYTES_MAX].decode(errors="ignore").encode()
        head = SAMPLE.pack(message.accepted_ms, latency_us, session.client_type, len(root))
        state.tick.writes.receipts.append(head + root)
