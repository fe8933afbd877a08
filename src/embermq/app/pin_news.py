"""What the broker's log says about readers that hold back the message log: when it begins, and when it is over."""

import logging
from collections.abc import Iterable, Mapping

from embermq.durability.retention import RetentionState

News = tuple[int, str]
"""Level of `logging`, and the line."""

_OWN = "pipeline.pin_policies"
_COMMON = "log.pin_policy"


class PinNews:
    """Compares each round of retention with the one before."""

    def __init__(self, own: Iterable[str]) -> None:
        """`own`: the queries that have a policy of their own."""
        self._settings: Mapping[str, str] = dict.fromkeys(own, _OWN)
        self._near: frozenset[str] = frozenset()
        self._passed: frozenset[str] = frozenset()
        self._was_over = False

    def since(self, now: RetentionState) -> list[News]:
        """What is worth a line now."""
        news = [(logging.WARNING, self._near_line(query, now)) for query in sorted({*now.near} - self._near)]
        news += [(logging.ERROR, _passed_line(query, now)) for query in sorted({*now.passed} - self._passed)]
        self._near = frozenset(now.near)
        # What is dropped brings a query back to the limit, and what comes next past it again: that is told once.
        self._passed = (self._passed & self._near) | frozenset(now.passed)
        if now.over_limit and not self._was_over:
            first = now.pins[0]
            line = f"the log holds {now.body_bytes} bytes, more than readers may hold back; furthest behind: "
            news.append((logging.WARNING, f"{line}{first.name}, by {first.behind} records"))
        elif self._was_over and not (now.over_limit or now.near):
            news.append((logging.INFO, "the log is within its limits again"))
        self._was_over = now.over_limit or (self._was_over and bool(now.near))
        return news

    def _near_line(self, query: str, now: RetentionState) -> str:
        return (
            f"{query} holds back more than half of what readers may hold back of the log ({now.body_bytes} of "
            f"{now.pin_limit_bytes} bytes); past that, {self._settings.get(query, _COMMON)} decides"
        )


def _passed_line(query: str, now: RetentionState) -> str:
    if query in now.to_pause:
        return (
            f"{query} is paused: it held back more of the log than readers may. What the log drops meanwhile will be "
            f"missing there; `embermq pipeline resume {query}` lets it go on"
        )
    return (
        f"{query} is so far behind that the log goes on without it: its oldest records are dropped, and counted as "
        "missing"
    )
