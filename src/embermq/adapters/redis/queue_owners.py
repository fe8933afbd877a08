"""Which queue a generation belongs to, what Redis is told to show that it is ours, and the order of what it is told."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from weakref import WeakValueDictionary

from msgspec import Struct, field

from embermq.formats.redis_queues import QueueKeys, queue_fence, queue_keys
from embermq.model.queue_rows import QueueSettingsRow


def nothing() -> None:
    """What a step does that only waits."""


class QueueStep:
    """Something to be asked for one queue, when its turn has come and nothing holds it any more."""

    __slots__ = ("_lane", "held", "run")

    def __init__(self, lane: StepLine, run: Callable[[], None] = nothing, *, held: int = 0) -> None:
        self._lane = lane
        self.run = run
        self.held = held

    def release(self) -> None:
        """One of those that hold it lets go."""
        self.held -= 1
        self._lane.go_on()


class StepLine:
    """What is to be asked for a queue, first in, first out, whoever of its name it is for."""

    __slots__ = ("__weakref__", "_steps")

    def __init__(self) -> None:
        self._steps: deque[QueueStep] = deque()

    def put(self, step: QueueStep) -> None:
        """It is done at once when nothing is before it."""
        self._steps.append(step)
        self.go_on()

    def do(self, run: Callable[[], None]) -> None:
        """The same of what nothing holds."""
        if self._steps:
            self._steps.append(QueueStep(self, run))
        else:
            run()

    @property
    def is_held(self) -> bool:
        """Whether what is put now has to wait."""
        return bool(self._steps)

    def go_on(self) -> None:
        """Run the steps at the head of the line, up to the first one that is held."""
        steps = self._steps
        while steps and not steps[0].held:
            steps.popleft().run()


class QueueOwner(Struct, eq=False):
    """One queue that this broker has. Groups are in Redis by numbers, which are never used again."""

    generation: int
    name: str
    keys: QueueKeys
    fence: str
    lane: StepLine
    is_stored: bool = False
    """Whether Redis has it, or is about to."""
    groups: dict[str, int] = field(default_factory=dict)
    next_group: int = 1
    is_swept: bool = True
    """False: marks are there of groups that are gone."""
    moved: int = 0
    """The number of the last step in which messages went to other queues."""
    finished: list[str] = field(default_factory=list)
    """What stands in its progress of messages that came, and have left where they came from."""
    unfinished: list[tuple[QueueOwner, str]] = field(default_factory=list)
    """The same of messages that went from here to other queues, and were here still at the start."""

    def number(self, group: str) -> int:
        """Of a group that is there from now on, at the latest."""
        number = self.groups.get(group)
        if number is None:
            number = self.groups[group] = self.next_group
            self.next_group += 1
        return number


class QueueOwners:
    """Queues by generation, of a slot whose keys begin with `prefix`."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._by_generation: dict[int, QueueOwner] = {}
        self._lanes: WeakValueDictionary[str, StepLine] = WeakValueDictionary()
        self.ended: dict[str, tuple[bytes, int]] = {}
        """Of queues that were deleted, by key: what is left there, and up to which position of the log that is needed.
        """

    def __iter__(self) -> Iterator[QueueOwner]:
        return iter(self._by_generation.values())

    def get(self, generation: int) -> QueueOwner | None:
        """None when it was deleted."""
        return self._by_generation.get(generation)

    def take(self, row: QueueSettingsRow) -> QueueOwner:
        """The queue is about to be stored, or was found."""
        owner = self._by_generation.get(row.generation)
        if owner is None:
            lane = self._lanes.get(row.name)
            if lane is None:
                lane = self._lanes[row.name] = StepLine()
            owner = self._by_generation[row.generation] = QueueOwner(
                row.generation,
                row.name,
                queue_keys(row.name, self._prefix),
                queue_fence(row.generation),
                lane,
            )
        return owner

    def release(self, generation: int) -> QueueOwner | None:
        """Forget a deleted queue. Returns what was known of it; None when nothing was."""
        return self._by_generation.pop(generation, None)
