"""A link to a real Redis that does what it is asked at once, in order, and can do it again as after a lost answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import redis

from embermq.adapters.redis.answers import Answer, Refused
from embermq.adapters.redis.blocking import BlockingRedis
from embermq.adapters.redis.lane import HeldKeys
from embermq.adapters.redis.link import RedisLink
from embermq.adapters.redis.script import Script
from embermq.adapters.redis.wire import Then, Word


class StepLink(RedisLink):
    """`post` brings answers, never from within `ask`. `refused` has what Redis would not do."""

    def __init__(self, server: BlockingRedis, post: Callable[[Callable[[], None]], object]) -> None:
        self._server = server
        self.prefix = server.prefix
        self._post = post
        self._asked: list[tuple[str, tuple[Word, ...]]] = []
        self.refused: list[str] = []
        self.away = False
        self.away_keys: set[str] = set()
        """Of a server that does not answer."""
        self.held_keys = HeldKeys()
        self._waiting: list[tuple[str, tuple[Word, ...], Then]] = []

    def ask(self, key: str, script: Script, keys: Sequence[Word], args: Sequence[Word], then: Then) -> None:
        self._do(key, ("EVAL", script.source, len(keys), *keys, *args), then)

    def command(self, key: str, words: Sequence[Word], then: Then) -> None:
        self._do(key, tuple(words), then)

    @property
    def epoch(self) -> int:
        return 0

    @property
    def is_cluster(self) -> bool:
        return self._server.is_cluster

    @property
    def is_resending(self) -> bool:
        return False

    @property
    def settle_s(self) -> float:
        return 0.0

    def server_of(self, key: str) -> object:
        return self._server.at(key)

    def forget_settled(self, before_s: float) -> None:
        """Nothing is kept."""

    def repeat(self, last: int, most: int | None = None) -> None:
        """The last operations take effect once more, in their order; at `most` so many of them, then we die."""
        for key, words in self._asked[-last:][:most]:
            self._answer(key, words)

    def return_(self) -> None:
        """It answers again."""
        self.away = False
        self.away_keys.clear()
        waiting, self._waiting = self._waiting, []
        for key, words, then in waiting:
            self._do_now(key, words, then)

    @property
    def asked(self) -> int:
        """Operations so far."""
        return len(self._asked)

    @property
    def waiting_bytes(self) -> int:
        return sum(len(word) for _, words, _ in self._waiting for word in words if isinstance(word, bytes))

    @property
    def failing(self) -> str:
        return "away" if self.away else ""

    def _do(self, key: str, words: tuple[Word, ...], then: Then) -> None:
        assert key.startswith(self.prefix)
        if key in self.held_keys:
            self.held_keys.put(key, partial(self._do_now, key, words, then))
        else:
            self._do_now(key, words, then)

    def _do_now(self, key: str, words: tuple[Word, ...], then: Then) -> None:
        if self.away or key in self.away_keys:
            self._waiting.append((key, words, then))
            return
        self._asked.append((key, words))
        self._post(partial(then, self._answer(key, words)))

    def _answer(self, key: str, words: tuple[Word, ...]) -> Answer:
        try:
            return self._server.at(key).execute_command(*words)  # type: ignore[no-any-return]
        except redis.ResponseError as error:
            self.refused.append(str(error))
            return Refused(str(error))
