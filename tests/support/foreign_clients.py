"""A broker with all its doors open, and what a client in any language must report of tests/clients/README.md."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tests.support.broker_process import BrokerProcess, free_port
from tests.support.certificates import Authority

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests" / "clients"
BUILT = ROOT / "build" / "clients"

V31, V311, V5 = 3, 4, 5
TRANSPORTS = ("tcp", "tls", "ws", "wss")
_SCHEMES = {"tcp": "mqtt", "tls": "mqtts", "ws": "ws", "wss": "wss"}
_MESSAGES = 200
_AWAY = 20


class OpenBroker(BrokerProcess):
    """Serves MQTT over TCP, TLS, WebSocket and secure WebSocket."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder / "certificates")
        self.authority = authority.certificate
        self.certificate = authority.server()
        ports = {transport: free_port() for transport in TRANSPORTS[1:]}
        super().__init__(
            folder / "data",
            settings={
                "listeners.mqtts": f"127.0.0.1:{ports['tls']}",
                "listeners.ws": f"127.0.0.1:{ports['ws']}",
                "listeners.wss": f"127.0.0.1:{ports['wss']}",
                "tls.cert": self.certificate,
            },
        )
        self._ports = ports | {"tcp": self.port}

    def url(self, transport: str) -> str:
        path = "/mqtt" if transport in ("ws", "wss") else ""
        return f"{_SCHEMES[transport]}://localhost:{self._ports[transport]}{path}"

    def words(self, transport: str, version: int, name: str) -> list[str]:
        """What follows the name of a client's program."""
        trust = [str(self.authority)] if transport in ("tls", "wss") else []
        return [self.url(transport), str(version), name, *trust]


def expected(version: int, name: str) -> list[dict[str, object]]:
    """The reports of one run in their order."""
    every_version: list[dict[str, object]] = [
        {"step": "qos", "qos": qos, "numbers": list(range(_MESSAGES)), "grades": [qos]} for qos in range(3)
    ] + [
        {
            "step": "away",
            "present": version != V31,  # 3.1 has no such flag
            "qos1": list(range(0, _AWAY, 2)),
            "qos2": list(range(1, _AWAY, 2)),
        },
        {"step": "retained", "before": ["kept", True], "after": ["end", False]},
        {"step": "will", "payload": "gone", "taken_over": 0x8E if version == V5 else None},
    ]
    only_v5: list[dict[str, object]] = [
        {
            "step": "properties",
            "user": [["k", "1"], ["k", "2"], ["l", "3"]],
            "identifiers": [7],
            "content_type": "text/plain",
            "response_topic": "reply",
            "correlation": [0, 1, 255],
            "expiry": 60,
            "text": True,
        },
        {"step": "alias", "topics": [f"{name}/alias"] * 3, "numbers": [0, 1, 2]},
        {"step": "expiry", "payloads": ["lasting"]},
        {"step": "shared", "shares": [_AWAY // 2] * 2, "numbers": list(range(_AWAY))},
        {"step": "codes", "granted": [2], "no_subscriber": 0x10, "no_subscription": 0x11},
    ]
    return [*every_version, *(only_v5 if version == V5 else []), {"step": "end"}]


def check_reports(lines: Iterable[str], version: int, name: str, *, unseen: Iterable[str] = ()) -> None:
    """Raise AssertionError unless the lines are the expected reports; `unseen` keys are those a library hides."""
    reports = [json.loads(line) for line in lines]
    wanted = expected(version, name)
    for report, one in zip(reports, wanted, strict=False):
        for key in unseen:
            assert key not in report, f"{key} is seen after all"
            one.pop(key, None)
        expiry = report.get("expiry")
        if isinstance(expiry, int) and 55 <= expiry <= 60:
            report["expiry"] = 60  # the seconds that it took are taken off
        assert report == one, f"\n{report}\nis not\n{one}"
    assert [report["step"] for report in reports] == [one["step"] for one in wanted], [
        report["step"] for report in reports
    ]
