"""Starting and stopping the brokers that are measured."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

import msgspec

from benchmarks.plan import Variant

SYSTEM_PROGRAMS = "/usr/local/sbin:/usr/sbin"
"""Where packages put brokers, which is not on everybody's path."""
START_DEADLINE_S = 60.0
PIPELINE_DEADLINE_S = 120.0
STOP_DEADLINE_S = 15.0
POLL_S = 0.05
CERTIFICATE, KEY = "certificate.pem", "key.pem"

MOSQUITTO_CONFIGURATION = """\
listener {port} 127.0.0.1
{transport}
user root
allow_anonymous true
persistence false
max_inflight_messages 0
max_queued_messages 0
max_queued_bytes 0
set_tcp_nodelay true
log_type error
"""


RUMQTTD_CONFIGURATION = """\
id = 0

[router]
id = 0
max_connections = 20000
max_outgoing_packet_count = 200
max_segment_size = 104857600
max_segment_count = 10

[v5.1]
name = "v5-1"
listen = "127.0.0.1:{port}"
next_connection_delay_ms = 0
[v5.1.connections]
connection_timeout_ms = 60000
max_payload_size = 1048576
max_inflight_count = 1000
dynamic_filters = true
"""


class BrokerError(Exception):
    """A broker cannot be used, or did not start."""


class Programs(msgspec.Struct, frozen=True, kw_only=True):
    """The brokers to compare with; `rumqttd` is "" for none."""

    mosquitto: str
    rumqttd: str = ""


def named_programs(environment: Mapping[str, str]) -> Programs:
    """Those that MOSQUITTO and RUMQTTD name; else the system's Mosquitto and no rumqttd. Raises BrokerError."""
    found: dict[str, str] = {}
    for name in ("MOSQUITTO", "RUMQTTD"):
        path = environment.get(name, "")
        if not path:
            continue
        program = shutil.which(path)
        if program is None:
            raise BrokerError(f"{name}: {path!r} is not a program that can be run")
        found[name.lower()] = program
    system = shutil.which("mosquitto", path=f"{environment.get('PATH', '')}:{SYSTEM_PROGRAMS}")
    return Programs(mosquitto=found.get("mosquitto", system or "mosquitto"), rumqttd=found.get("rumqttd", ""))


class RunningBroker:
    """A broker on a free loopback port with a directory of its own; a context manager that stops it."""

    def __init__(
        self,
        variant: Variant,
        programs: Programs,
        *,
        transport: str = "tcp",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.variant = variant
        self._transport = transport
        self._environment = environment or os.environ
        self._programs = programs
        self.port = free_port()
        self.http_port = free_port()
        self._directory = Path(tempfile.mkdtemp(prefix="embermq-bench-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def data_dir(self) -> Path:
        """Of EmberMQ; what is in it before the start is there for the broker."""
        return self._directory / "data"

    @property
    def reach(self) -> tuple[str, ...]:
        """What `embermq bench` needs to speak with it."""
        port = ("--port", str(self.port))
        if self._transport == "tls":
            return (*port, "--ca", str(self._directory / CERTIFICATE))
        return (*port, "--websocket") if self._transport == "websocket" else port

    @property
    def pid(self) -> int:
        """Process id of the broker."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> RunningBroker:
        try:
            if self._transport == "tls":
                make_certificate(self._directory)
            if self.variant.broker == "mosquitto":
                self._start_foreign(self._programs.mosquitto, "-c", MOSQUITTO_CONFIGURATION)
            elif self.variant.broker == "rumqttd" and self._transport != "tcp":
                raise BrokerError(f"rumqttd is measured over TCP alone, not over {self._transport}")
            elif self.variant.broker == "rumqttd":
                self._start_foreign(self._programs.rumqttd, "-c", RUMQTTD_CONFIGURATION)
            else:
                self._start_embermq()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    def _start_foreign(self, program: str, option: str, text: str) -> None:
        configuration = self._directory / "configuration.toml"
        transports = {
            "tcp": "",
            "tls": f"certfile {self._directory / CERTIFICATE}\nkeyfile {self._directory / KEY}",
            # 2.0 does not start with WebSocket alone.
            "websocket": f"protocol websockets\nlistener {free_port()} 127.0.0.1",
        }
        configuration.write_text(text.format(port=self.port, transport=transports[self._transport]))
        self._spawn([program, option, str(configuration)])
        self._await(lambda: _accepts(self.port), START_DEADLINE_S, "accept a connection")

    def _start_embermq(self) -> None:
        command = [
            str(Path(sys.executable).with_name("embermq")),
            "run",
            "--data-dir",
            str(self.data_dir),
            *self._listeners(),
            "--set",
            f"listeners.http=127.0.0.1:{self.http_port}",
            "--set",
            "listeners.grpc=",
            *self.variant.arguments,
        ]
        self._spawn(command)
        self._await(lambda: "ready" in self._output().splitlines(), START_DEADLINE_S, "print 'ready'")
        if self.variant.has_pipeline:
            self._await(self._pipeline_runs, PIPELINE_DEADLINE_S, "have its pipeline running")

    def _listeners(self) -> list[str]:
        place = f"127.0.0.1:{self.port}"
        if self._transport == "tcp":
            return ["--set", f"listeners.mqtt={place}"]
        if self._transport == "websocket":
            return ["--set", "listeners.mqtt=", "--set", f"listeners.ws={place}"]
        files = {"cert": CERTIFICATE, "key": KEY}
        words = ["--set", "listeners.mqtt=", "--set", f"listeners.mqtts={place}"]
        for name, file in files.items():
            words += ["--set", f"tls.{name}={self._directory / file}"]
        return words

    def _pipeline_runs(self) -> bool:
        address = f"http://127.0.0.1:{self.http_port}/api/v1/pipeline"
        try:
            with urllib.request.urlopen(address, timeout=2) as answer:
                document = json.load(answer)
        except (urllib.error.URLError, TimeoutError, ConnectionError, json.JSONDecodeError):
            return False
        queries = document.get("queries", [])
        return bool(queries) and all(query.get("state") == "running" for query in queries)

    def _spawn(self, command: list[str]) -> None:
        with (self._directory / "output").open("wb") as output:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=self._environment,
                )
            except OSError as error:
                raise BrokerError(f"{self.variant.name} cannot be started: {error}") from error

    def _await(self, condition: Callable[[], bool], deadline_s: float, what: str) -> None:
        assert self._process is not None
        end = time.monotonic() + deadline_s
        while not condition():
            if self._process.poll() is not None:
                raise BrokerError(f"{self.variant.name} ended at its start: {self._output()[-2000:]}")
            if time.monotonic() > end:
                raise BrokerError(
                    f"{self.variant.name} did not {what} in {deadline_s} s: {self._output()[-2000:]}"
                )
            time.sleep(POLL_S)

    def _output(self) -> str:
        return (self._directory / "output").read_text(errors="replace")

    def _stop(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)


def make_certificate(folder: Path) -> None:
    """For 127.0.0.1, signed by itself, of the size and kind that most have. Raises BrokerError."""
    words = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=127.0.0.1",
    ]
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", KEY, "-out", CERTIFICATE]
    try:
        done = subprocess.run([*words, *files], cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BrokerError(f"openssl cannot be run: {error}") from error
    if done.returncode:
        raise BrokerError(f"openssl made no certificate: {done.stderr.strip()[-500:]}")


def fsync_p50_ms(folder: Path, *, times: int = 200) -> float:
    """The median of writing 4 KiB to the end of a file and having them on the disk."""
    took = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(times):
            began = time.perf_counter()
            os.write(file.fileno(), bytes(4096))
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    return statistics.median(took) * 1000


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _accepts(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False
