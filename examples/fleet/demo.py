"""A vehicle fleet on EmberMQ, counted to the last message.

Vehicles (DEVICE clients) report, drive through tunnels without network, and get commands that wait for them. The
office (an APPLICATION client) hears all of them by way of the Spark pipeline, goes home in the middle and finds
everything when it returns. All of it has QoS 2: with QoS 1 a client that leaves may get its last messages again. The
exit code is 0 when nothing was lost or doubled.
"""

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from aiomqtt import MqttError
from rich.console import Console

from broker import BrokerError, running_broker
from fleet import ControlRoom, Office, Vehicle
from ledger import Ledger
from screen import Screen, result_table

FIRST_REPORT_S = 300.0
"""Spark has started by then, on a slow machine too."""
REST_S = 120.0
COMMANDS_PER_S = 10.0


@dataclass(frozen=True)
class Story:
    """How much happens."""

    vehicles: int
    reports_per_s: float
    """Of each vehicle."""
    chapter_s: float
    """The office listens, is away, and is back for so long each."""


class Demo:
    """One run of the story."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.telemetry = Ledger()
        self.commands = Ledger()
        self.screen = Screen(self.telemetry, self.commands)
        self.facts: dict[str, float] = {}
        self._began = time.monotonic()

    async def run(self) -> None:
        """Start the broker, tell the story, stop the broker."""
        with self.screen:
            self._say("the broker starts")
            async with running_broker(application_ids="office-*") as port:
                await self._tell(port)
                self._say("everything has arrived; the broker stops")
        self.facts["seconds"] = round(self._elapsed_s, 1)

    async def _tell(self, port: int) -> None:
        names = [f"vehicle-{number:03}" for number in range(1, self.story.vehicles + 1)]
        vehicles = [Vehicle(name, port, self.telemetry, self.commands) for name in names]
        room = ControlRoom(port, vehicles, self.commands)
        office = Office("office-1", port, self.telemetry)
        self.screen.watch(vehicles, room, office)
        parked, home = asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as clients:
            leave = asyncio.Event()
            day = clients.create_task(office.work(leave))
            await _until(lambda: office.is_there, FIRST_REPORT_S, "the office could not connect")
            for vehicle in vehicles:
                clients.create_task(vehicle.drive(1 / self.story.reports_per_s, parked, home))
            await _until(
                lambda: any(v.is_online for v in vehicles), FIRST_REPORT_S, "no vehicle could connect"
            )
            clients.create_task(room.command(COMMANDS_PER_S, parked))
            self._say(
                f"{self.story.vehicles} vehicles drive and report; Spark, which brings it to the office, starts"
            )
            await _until(office.heard.is_set, FIRST_REPORT_S, "the office heard nothing: Spark did not start")
            self._say("the office hears its first report")
            await asyncio.sleep(self.story.chapter_s)
            leave.set()
            await day
            self._say("the office goes home; the fleet drives on")
            await asyncio.sleep(self.story.chapter_s)
            kept = self.telemetry.on_the_way
            leave.clear()
            clients.create_task(office.work(leave))
            self._say(f"the office is back and finds {kept:,} reports")
            await asyncio.sleep(self.story.chapter_s)
            parked.set()
            self._say("the fleet parks; what is still on the way arrives")
            await self._everything_arrived(vehicles)
            self.facts |= {
                "kept_for_office": kept,
                "commands_to_offline_vehicles": room.sent_to_offline,
                "tunnels": sum(vehicle.tunnels for vehicle in vehicles),
            }
            leave.set()
            home.set()

    async def _everything_arrived(self, vehicles: list[Vehicle]) -> None:
        """All are parked, and nothing is on the way; what is lost shows in the table, so the time is bounded."""

        def arrived() -> bool:
            totals = (self.telemetry.totals(), self.commands.totals())
            return all(v.is_online for v in vehicles) and all(t.sent == t.delivered for t in totals)

        with suppress(TimeoutError):
            await _until(arrived, REST_S, "")
            await asyncio.sleep(1.0)  # a duplicate would come now

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def _say(self, text: str) -> None:
        self.screen.say(self._elapsed_s, text)


async def _until(condition: Callable[[], bool], deadline_s: float, otherwise: str) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(otherwise)
        await asyncio.sleep(0.05)


def options() -> argparse.Namespace:
    """What may be asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vehicles", type=int, default=200)
    parser.add_argument("--reports-per-s", type=float, default=1.0, help="of each vehicle")
    parser.add_argument("--chapter-s", type=float, default=15.0, help="the office listens, is away, is back")
    parser.add_argument("--json", action="store_true", help="the numbers for machines, on standard output")
    return parser.parse_args()


async def run(demo: Demo) -> None:
    """Ctrl-C, SIGTERM and a closed terminal end the story early; the broker is stopped all the same."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await demo.run()


def _told(error: Exception) -> str:
    """The first cause."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__


def main() -> int:
    """0: everything arrived, once and in order. 1: it did not. 130: interrupted."""
    asked = options()
    demo = Demo(Story(asked.vehicles, asked.reports_per_s, asked.chapter_s))
    try:
        asyncio.run(run(demo))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted; everything that was started has been stopped", file=sys.stderr)
        return 130
    except (BrokerError, MqttError, OSError, ExceptionGroup) as error:
        print(f"the story ended early: {_told(error)}", file=sys.stderr)
        return 1
    telemetry, commands = demo.telemetry.totals(), demo.commands.totals()
    if asked.json:
        numbers = {"telemetry": telemetry.as_json(), "commands": commands.as_json(), **demo.facts}
        print(json.dumps(numbers, indent=2))
    else:
        Console().print(result_table(telemetry, commands, is_over=True))
    return 0 if telemetry.is_perfect and commands.is_perfect else 1


if __name__ == "__main__":
    sys.exit(main())
