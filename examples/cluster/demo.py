"""A cluster of three brokers, of which two serve, and one is killed under load: counted to the last message.

etcd, Redis and Kafka run on free ports of loopback, the brokers too. Publishers and watchers are on all nodes. In the
middle one of the nodes that serve gets SIGKILL; the third one takes its place, and clients come again by themselves.
The exit code is 0 when nothing that was acknowledged was lost, and nothing came twice or in another order.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from types import FrameType, ModuleType

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
# Packages that were installed have modules of the same names, which would be found instead of these.
for name in ("tests", "examples"):
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [str(ROOT / name)]

from examples.cluster.stack import SLOTS, Node, running_servers  # noqa: E402
from rich.box import SIMPLE_HEAD  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.live import Live  # noqa: E402
from rich.table import Table  # noqa: E402
from tests.faults.traffic import Place, Publisher, Subscriber  # noqa: E402
from tests.support.waiting import wait_for  # noqa: E402

from embermq.cluster.slots import slot_of  # noqa: E402
from embermq.mqtt.wire.version import ProtocolVersion  # noqa: E402

V5 = ProtocolVersion.V5
Say = Callable[[str], None]
READY, STANDS_BY = "\nready\n", "stands by"
ROOT_TOPIC = "plant"
FIRST_S = 120.0
"""For what takes some seconds, on a slow machine too."""
REST_S = 180.0
QUIET_S = 1.0
"""A message that came twice would come now."""


@dataclass(frozen=True)
class Totals:
    """One line of the table, of what is for one watcher. Lost: acknowledged and not delivered, so under way while the
    story goes on."""

    sent: int
    acknowledged: int
    delivered: int
    lost: int
    doubled: int
    reordered: int

    @property
    def is_perfect(self) -> bool:
        """Everything that was sent arrived, once and in order."""
        wrong = self.lost or self.doubled or self.reordered
        return self.sent == self.acknowledged == self.delivered > 0 and not wrong


class AnyNode(Place):
    """Where a client connects: to another node each time, which may be dead or stand by. Then it tries again."""

    def __init__(self, nodes: list[Node], name: str) -> None:
        self._ports = [node.port for node in nodes]
        self._random = Random(name)

    @property
    def port(self) -> int:  # type: ignore[override]
        return self._random.choice(self._ports)


class Demo:
    """One run, on servers that run."""

    def __init__(self, nodes: list[Node], say: Say, publishers: int, per_s: float, chapter_s: float) -> None:
        self._nodes = nodes
        self._say = say
        self._pause_s = 1 / per_s
        self._chapter_s = chapter_s
        self.takeover_s = 0.0
        self.publishers = [
            Publisher(AnyNode(nodes, name), name, V5, qos=2, topics=[f"{ROOT_TOPIC}/{name}"])
            for name in [f"publisher-{number}" for number in range(1, publishers + 1)]
        ]
        self.watchers = [
            Subscriber(AnyNode(nodes, name), name, V5, topic_filter=f"{ROOT_TOPIC}/#", random=Random(name))
            for name in map(_name_of, range(SLOTS))
        ]

    def totals(self) -> dict[str, Totals]:
        """By watcher."""
        sent = sum(sum(each.sent.values()) for each in self.publishers)
        acknowledged = {key for each in self.publishers for key in each.acknowledged}
        return {
            each.client_id: Totals(
                sent,
                len(acknowledged),
                len(each.seen),
                len(acknowledged - each.seen.keys()),
                sum(each.seen.values()) - len(each.seen),
                len(each.swapped),
            )
            for each in self.watchers
        }

    async def run(self) -> None:
        """Raises AssertionError for what does not come in time, or is against the rules of MQTT."""
        for watcher in self.watchers:
            watcher.start()
        for watcher in self.watchers:
            await asyncio.wait_for(watcher.subscribed.wait(), FIRST_S)
        for publisher in self.publishers:
            publisher.start()
        self._say(
            f"{len(self.publishers)} clients publish, {len(self.watchers)} hear all of them, on any node"
        )
        await self._publish(self._chapter_s)
        await self._kill(*self._nodes)
        await self._publish(self._chapter_s)
        self._say("nobody publishes any more; what is on its way arrives")
        for publisher in self.publishers:
            publisher.finish()
        await wait_for(lambda: all(each.is_done for each in self.publishers), REST_S, "all is acknowledged")
        with suppress(AssertionError):  # what does not arrive is in the table
            await wait_for(
                lambda: all(each.delivered == each.sent for each in self.totals().values()), REST_S
            )
        await asyncio.sleep(QUIET_S)
        for client in (*self.publishers, *self.watchers):
            client.check()
            await client.stop()

    async def _kill(self, victim: Node, _other: Node, spare: Node) -> None:
        """Clients go on publishing: what they have goes when the node of their slot is there."""
        victim.kill()
        began = time.monotonic()
        self._say(f"kill -9 of node {victim.name}")
        while not spare.has_said(READY):
            await self._publish(self._pause_s)
            assert time.monotonic() - began < FIRST_S, f"node {spare.name} has not taken over"
        self.takeover_s = time.monotonic() - began
        self._say(f"node {spare.name} serves in its place, after {self.takeover_s:.1f} s")
        victim.launch()
        await wait_for(lambda: victim.has_said(STANDS_BY), FIRST_S, f"node {victim.name} stands by")
        self._say(f"node {victim.name} was started again, and stands by")

    async def _publish(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for each in self.publishers:
                each.allow(1)
            await asyncio.sleep(self._pause_s)


class Told:
    """What a person sees: lines as it goes on, at a terminal a table that moves."""

    def __init__(self) -> None:
        self.demo: Demo | None = None
        self._console = Console(stderr=True)
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """A new chapter."""
        elapsed_s = time.monotonic() - self._began
        self._console.print(f"[dim]{elapsed_s:5.1f} s[/]  {text}", highlight=False, soft_wrap=True)

    @contextmanager
    def live(self) -> Iterator[None]:
        """Show how far it is."""
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, get_renderable=self._picture, transient=True, redirect_stdout=False):
            yield

    def _picture(self) -> Table | str:
        return table(self.demo.totals(), is_over=False) if self.demo is not None else ""


def run(asked: argparse.Namespace) -> Demo:
    """Start everything, tell the story, stop everything."""
    told = Told()
    told.say("etcd, Redis and Kafka start")
    with running_servers() as nodes:
        first, second, third = nodes
        first.start()
        second.start()
        third.launch()
        asyncio.run(wait_for(lambda: third.has_said(STANDS_BY), FIRST_S, "node c stands by"))
        told.say("nodes a and b serve, a slot each; node c stands by")
        demo = told.demo = Demo(nodes, told.say, asked.publishers, asked.per_s, asked.chapter_s)
        with told.live():
            asyncio.run(demo.run())
        told.say("all is counted; what was started is stopped")
    return demo


def _name_of(slot: int) -> str:
    """A watcher that belongs to this slot, so that each slot has one."""
    return next(name for number in range(100) if slot_of(name := f"watcher-{number}", SLOTS) == slot)


def table(totals: dict[str, Totals], *, is_over: bool) -> Table:
    """Sent, acknowledged, delivered, and what must be 0 at the end: what has not arrived is under way until then."""
    found = Table(box=SIMPLE_HEAD, pad_edge=False)
    lost = "lost" if is_over else "under way"
    for name in ("to", "sent", "acknowledged", "delivered", lost, "doubled", "reordered"):
        found.add_column(name, justify="left" if name == "to" else "right", no_wrap=True)
    for name, each in totals.items():
        found.add_row(name, *(f"{number:,}" for number in asdict(each).values()))
    return found


def options() -> argparse.Namespace:
    """What may be asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--publishers", type=int, default=8)
    parser.add_argument("--per-s", type=float, default=20.0, help="messages of each publisher")
    parser.add_argument("--chapter-s", type=float, default=10.0, help="before the kill, and after it")
    parser.add_argument("--json", action="store_true", help="the numbers for machines, on standard output")
    return parser.parse_args()


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """0: everything arrived, once and in order. 1: it did not. 130: interrupted."""
    asked = options()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        demo = run(asked)
    except KeyboardInterrupt:
        print("interrupted; everything that was started has been stopped", file=sys.stderr)
        return 130
    except (AssertionError, OSError) as error:
        print(f"the story ended early: {error}", file=sys.stderr)
        return 1
    totals = demo.totals()
    if asked.json:
        lines = {name: asdict(each) for name, each in totals.items()}
        print(json.dumps(lines | {"takeover_s": round(demo.takeover_s, 1)}, indent=2))
    else:
        Console().print(table(totals, is_over=True))
    return 0 if all(each.is_perfect for each in totals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
