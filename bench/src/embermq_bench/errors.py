"""What can go wrong in a load run."""

from __future__ import annotations


class BenchError(Exception):
    """A load run could not be carried out."""


class LoadError(BenchError):
    """The options contradict one another: the caller's fault."""


class RefusedError(BenchError):
    """The broker answered CONNECT, SUBSCRIBE or a packet of ours with a refusal."""


class ConnectionLostError(BenchError):
    """A connection ended, or could not be opened, while it was needed."""


class SessionLostError(BenchError):
    """The broker had no session for a subscriber that came back: what it missed is gone."""


class ProcessGoneError(BenchError):
    """A process whose cost was to be measured does not exist (any more)."""
