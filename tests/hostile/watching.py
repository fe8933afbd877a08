"""What is looked at while others misbehave: the broker's output, its memory, its metrics, its open files."""

from __future__ import annotations

import os
import re
import resource
import urllib.request
from pathlib import Path

from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_until

TROUBLE = re.compile(rb"Traceback|exception|never retrieved|Unhandled", re.IGNORECASE)
GAUGES = ("connections", "sessions", "subscriptions")


class Watch:
    """Reads the output of a broker once, piece by piece, however long it is."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._seen = 0

    def look(self) -> str:
        """The lines about an error that nothing caught, with what follows them; "" when there are none."""
        new = self._broker.output_from(self._seen)
        found = TROUBLE.search(new)
        if found is None:
            self._seen += new.rfind(b"\n") + 1
            return ""
        return new[max(0, found.start() - 500) : found.start() + 4_000].decode(errors="replace")

    def check(self) -> None:
        """Raise AssertionError when there are some, or when the broker is gone."""
        assert self._broker.is_running, self._broker.output()
        trouble = self.look()
        assert not trouble, trouble


def resident_bytes(broker: BrokerProcess) -> int:
    """Memory of the broker's process."""
    return int(Path(f"/proc/{broker.pid}/statm").read_text().split()[1]) * resource.getpagesize()


def cpu_s(broker: BrokerProcess) -> float:
    """CPU seconds that it has used."""
    fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def metric(broker: BrokerProcess, name: str) -> float:
    """A metric without labels, for example "connections"."""
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.http_port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    found = re.search(rf"^embermq_{name} (\S+)$", text, re.MULTILINE)
    assert found, f"there is no metric {name}"
    return float(found[1])


def gauges(broker: BrokerProcess) -> dict[str, float]:
    """What has to be as before once everybody has gone."""
    return {name: metric(broker, name) for name in GAUGES}


def wait_for_gauges(broker: BrokerProcess, wanted: dict[str, float], deadline_s: float = 60.0) -> None:
    """Wait until everybody has gone."""
    wait_until(lambda: gauges(broker) == wanted, deadline_s, f"{wanted}, now {gauges(broker)}", poll_s=0.1)


def allow_many_files(wanted: int) -> int:
    """Raise the limit of open files of this process, and so of the broker that it starts; returns what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
