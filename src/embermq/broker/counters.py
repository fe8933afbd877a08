"""What the broker counts; observability turns a snapshot of it into metrics."""

from msgspec import Struct


class Counters(Struct):
    """Running totals since start."""

    connections_accepted: int = 0
    connections_refused: int = 0
    takeovers: int = 0
    messages_received: int = 0
    messages_sent: int = 0
    messages_stored: int = 0
    messages_elided: int = 0
    dropped_offline_limit: int = 0
    dropped_expired: int = 0
    dropped_slow: int = 0
    dropped_too_large: int = 0
    publishes_refused: int = 0
    protocol_errors: int = 0
    commits: int = 0
    commits_failed: int = 0
    wills_published: int = 0
    redelivered_after_start: int = 0
