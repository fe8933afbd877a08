"""What a broker says of itself over HTTP, and what the system says of it."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

from tests.support.broker_process import BrokerProcess

ANSWER_S = 60.0


def metrics(broker: BrokerProcess) -> str:
    """All of them, as Prometheus reads them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.http_port}/metrics", timeout=ANSWER_S) as answer:
        text: str = answer.read().decode()
    return text


def metric(broker: BrokerProcess, name: str) -> float:
    """The value of `embermq_<name>`, a counter or a gauge; the sum over its labels."""
    text = metrics(broker)
    found = re.findall(rf"^embermq_{name}(?:_total)?(?:{{.*}})? (\S+)$", text, re.MULTILINE)
    assert found, f"there is no metric embermq_{name}"
    return sum(map(float, found))


def resident_mib(broker: BrokerProcess) -> float:
    """The broker's own memory now."""
    status = Path(f"/proc/{broker.pid}/status").read_text()
    found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024
