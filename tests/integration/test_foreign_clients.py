"""Clients of other languages speak to the real server: one scenario, by every client, version and transport it has.

The programs are in tests/clients; `make test` builds them (scripts/foreign-clients).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from _pytest.mark.structures import ParameterSet
from tests.support.foreign_clients import (
    BUILT,
    SOURCES,
    TRANSPORTS,
    V5,
    V31,
    V311,
    OpenBroker,
    check_reports,
)

RUN_S = 90.0
HEAVY = ("mqttjs", "paho-java")
"""A process of theirs costs two CPU seconds to begin: MQTT 3.1, which differs from 3.1.1 in its CONNECT alone, and what
is between the plainest transport and the one with the most layers are left to `make faults`."""
Case = tuple[str, int, str]
"""Client, version, transport."""
# The JVM of a program that lives for seconds: small, and quick to start.
JAVA = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


@dataclass(frozen=True, kw_only=True)
class Program:
    command: tuple[str, ...]
    versions: tuple[int, ...] = (V31, V311, V5)
    transports: tuple[str, ...] = TRANSPORTS
    unseen: tuple[str, ...] = ()


PROGRAMS = {
    "mqttjs": Program(
        command=("node", f"{SOURCES}/javascript/node.mjs"),
    ),
    "paho-go": Program(command=(f"{BUILT}/go/scenario",)),
    "paho-java": Program(command=(*JAVA, "-cp", f"{BUILT}/java/classes:{BUILT}/java/jars/*", "Scenario")),
    "gmqtt": Program(
        command=(sys.executable, f"{SOURCES}/python/gmqtt_scenario.py"),
        versions=(V311, V5),
        transports=("tcp", "tls"),
        unseen=("no_subscriber",),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Run:
    name: str
    process: subprocess.Popen[bytes]
    said: Path
    complained: Path


@pytest.fixture(scope="module")
def start(
    open_broker: OpenBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Case], Run]]:
    """With the first of a client's runs in one version all of this set of tests, since most of the time it waits."""
    started: dict[Case, Run] = {}

    def start_all(asked: Case) -> Run:
        if asked not in started:
            folder = tmp_path_factory.mktemp(asked[0])
            for client, version, transport in CASES:
                case, name = (client, version, transport), uuid4().hex[:12]
                if case[:2] == asked[:2] and is_left(case) == is_left(asked):
                    started[case] = launch(client, open_broker.words(transport, version, name), name, folder)
        return started[asked]

    try:
        yield start_all
    finally:
        for run in started.values():
            run.process.kill()
            run.process.wait(RUN_S)


def is_left(case: Case) -> bool:
    client, version, transport = case
    return client in HEAVY and (version == V31 or transport not in ("tcp", "wss"))


def launch(client: str, words: list[str], name: str, folder: Path) -> Run:
    said, complained = folder / f"{name}.out", folder / f"{name}.err"
    with said.open("wb") as out, complained.open("wb") as err:
        command = [*PROGRAMS[client].command, *words]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
    return Run(name=name, process=process, said=said, complained=complained)


CASES: list[Case] = [
    (client, version, transport)
    for client, program in PROGRAMS.items()
    for version in program.versions
    for transport in program.transports
]


def marked(cases: list[Case]) -> list[ParameterSet]:
    return [pytest.param(*case, marks=[pytest.mark.in_faults] if is_left(case) else []) for case in cases]


@pytest.mark.parametrize(("client", "version", "transport"), marked(CASES))
def test_scenario(
    start: Callable[[Case], Run], open_broker: OpenBroker, client: str, version: int, transport: str
) -> None:
    run = start((client, version, transport))
    code = run.process.wait(RUN_S)
    assert code == 0, run.complained.read_text() + run.said.read_text()[-2_000:]
    check_reports(run.said.read_text().splitlines(), version, run.name, unseen=PROGRAMS[client].unseen)
    assert open_broker.is_running
