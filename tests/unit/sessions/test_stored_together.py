"""What waits for one batch and goes to one link then."""

from __future__ import annotations

from tests.support.hand_driven import HandDrivenBroker, HandLink

from embermq.sessions.link import Link
from embermq.sessions.session import Session
from embermq.sessions.tick import Batch, StoredTogether


class Given:
    """A broker with two clients, and what their links were given."""

    def __init__(self) -> None:
        self.hand = HandDrivenBroker()
        self.one, self.other = self.hand.keeps("one"), self.hand.keeps("other")
        self.hand.settle()
        self.given: list[tuple[Link, list[int]]] = []
        self.together: StoredTogether[int] = StoredTogether(self.hand.state.tick, self._take)

    def _take(self, session: Session, link: Link, items: list[int]) -> None:
        assert session.link is link
        self.given.append((link, items[:]))

    def add(self, link: HandLink, *items: int) -> None:
        assert link.session is not None
        for item in items:
            self.together.add(link.session, link, item)

    def commit(self) -> Batch:
        batch = self.hand.state.tick.take()
        for _, call in batch.waiting():
            call()
        return batch


def test_it_is_one_call_a_link_and_batch() -> None:
    hand = Given()
    hand.add(hand.one, 1, 2)
    hand.add(hand.other, 3)
    hand.add(hand.one, 4)
    assert len(hand.hand.state.tick.batch.after_commit) == 2
    hand.commit()
    hand.add(hand.one, 5)
    hand.commit()
    assert hand.given == [(hand.one, [1, 2, 4]), (hand.other, [3]), (hand.one, [5])]


def test_a_link_that_is_gone_gets_nothing() -> None:
    hand = Given()
    hand.add(hand.one, 1)
    hand.add(hand.other, 2)
    hand.one.drops()
    hand.commit()
    assert hand.given == [(hand.other, [2])]


def test_what_a_failed_commit_gives_back_comes_before_what_came_meanwhile() -> None:
    hand = Given()
    tick = hand.hand.state.tick
    hand.add(hand.one, 1)
    failed = tick.take()
    hand.add(hand.one, 2)
    tick.give_back(failed)
    hand.add(hand.one, 3)
    hand.commit()
    assert hand.given == [(hand.one, [1]), (hand.one, [2, 3])]
