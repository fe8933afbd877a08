"""What `make bench` chooses and how it sums up, without a broker."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from benchmarks.brokers import BrokerError, Programs, RunningBroker, named_programs
from benchmarks.machine import Machine, describe
from benchmarks.plan import MOSQUITTO, RUMQTTD, SCENARIOS, Bar, Scenario, chosen, embermq
from benchmarks.run import Measured, Summary, show, show_bars, summarise
from rich.console import Console

from embermq import HOT_PATH, __version__
from embermq_bench.report import IdleCost, IdleReport

ROOT = Path(__file__).resolve().parents[3]
IDLE = Scenario(
    name="idle",
    title="idle",
    arguments=("idle",),
    full=(),
    quick=(),
    variants=(MOSQUITTO, embermq("embermq fsync")),
)

MACHINE = Machine(
    processor="AMD 7",
    cores=2,
    memory_mib=1,
    kernel="6",
    python="3.11.7",
    versions={"mosquitto": "2.1.2", "embermq": "1.0"},
    load_average=(0.5, 0, 0),
)


def idle(variant: str, number: int, pss_mib: int) -> Measured:
    cost = IdleCost(
        name="broker",
        pid=1,
        pss_before_bytes=pss_mib * 2**20,
        pss_with_bytes=pss_mib * 2**20 + 10 * 2048,
        bytes_per_connection=2048,
        connect_cpu_s=0.1,
        idle_cores=0,
    )
    report = IdleReport(connections=10, connect_s=1, connects_per_s=10, processes=(cost,))
    return Measured(scenario="idle", variant=variant, round=number, idle=report)


def test_figures_are_medians() -> None:
    measured = [idle("mosquitto", number, 4) for number in range(3)]
    measured += [idle("embermq fsync", number, mib) for number, mib in enumerate((10, 40, 12))]
    mosquitto, ember = summarise(IDLE, measured)
    assert mosquitto.figures["idle PSS, MiB"] == 4
    assert ember.figures["idle PSS, MiB"] == 12


def test_unnamed_there_is_what_has_bars_with_two_brokers() -> None:
    scenarios = chosen([], [])
    assert [scenario.name for scenario in scenarios] == [one.name for one in SCENARIOS if one.bars]
    assert {variant.name for scenario in scenarios for variant in scenario.variants} == {
        "mosquitto",
        "embermq fsync",
    }
    (away,) = chosen(["away"], ["embermq os"])
    assert (away.bars, [variant.name for variant in away.variants]) == ((), ["embermq os"])


@pytest.mark.parametrize(
    ("bar", "ours", "said"),
    [
        (Bar("row", 0.5, 0.8), 30, "MISSED"),
        (Bar("row", 0.5, 0.8), 50, "must"),
        (Bar("row", 0.5, 0.8), 80, "aim"),
        (Bar("row", 20, 10, kind="most"), 21, "MISSED"),
        (Bar("row", 20, 10, kind="most"), 11, "must"),
        (Bar("row", 20, 10, kind="most"), 10, "aim"),
        (Bar("row", 20, 30, kind="least"), 19, "MISSED"),
        (Bar("row", 20, 30, kind="least"), 30, "aim"),
    ],
)
def test_a_row_says_whether_its_bar_is_reached(bar: Bar, ours: float, said: str) -> None:
    scenario = msgspec.structs.replace(IDLE, bars=(bar,))
    figures = {"mosquitto": 100.0, "embermq fsync": ours}
    summaries = [
        Summary(scenario="idle", variant=variant, figures={bar.figure: figure})
        for variant, figure in figures.items()
    ]
    text = io.StringIO()
    show_bars([scenario], summaries, MACHINE, Console(file=text, width=170))
    (row,) = [line for line in text.getvalue().splitlines() if " row " in line]
    assert f" {said} " in row


def test_scenarios_and_variants_are_chosen_by_name() -> None:
    (only,) = chosen(["paced"], ["mosquitto"])
    assert only.name == "paced"
    assert [variant.name for variant in only.variants] == ["mosquitto"]
    with pytest.raises(ValueError, match="'pased' is unknown"):
        chosen(["pased"], [])
    with pytest.raises(ValueError, match="'hivemq' is unknown"):
        chosen([], ["hivemq"])


def program(folder: Path, name: str, says: str) -> str:
    """A program that answers so to any option."""
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return str(path)


def test_the_environment_names_the_brokers_to_compare_with(tmp_path: Path) -> None:
    mosquitto = program(tmp_path, "mine", "mosquitto version 9.8.7")
    rumqttd = program(tmp_path, "rumqttd", "rumqttd 0.1.2")
    named = named_programs({"MOSQUITTO": mosquitto, "RUMQTTD": rumqttd})
    assert named == Programs(mosquitto=mosquitto, rumqttd=rumqttd)
    versions = describe(named).versions
    hot = "compiled" if HOT_PATH.is_compiled else "source"
    assert versions == {"embermq": f"{__version__} {hot}", "mosquitto": "9.8.7", "rumqttd": "0.1.2"}
    scenarios = chosen([], [], rumqttd=True)
    assert all(
        scenario.variants[-1].broker == "rumqttd" for scenario in scenarios if MOSQUITTO in scenario.variants
    )


def test_without_names_there_is_the_systems_mosquitto_and_no_rumqttd(tmp_path: Path) -> None:
    program(tmp_path, "mosquitto", "mosquitto version 2.0.11")
    assert named_programs({"PATH": str(tmp_path)}) == Programs(mosquitto=str(tmp_path / "mosquitto"))
    with pytest.raises(ValueError, match="'rumqttd' is unknown"):
        chosen([], ["rumqttd"])


@pytest.mark.parametrize("name", ["MOSQUITTO", "RUMQTTD"])
def test_a_broker_that_is_not_there_is_told_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(BrokerError, match=f"^{name}: '{tmp_path}/none' is not a program"):
        named_programs({name: f"{tmp_path}/none"})


def test_rumqttd_gets_a_configuration_that_it_can_read(tmp_path: Path) -> None:
    """It tells the kind of a file by the end of its name."""
    stand_in = tmp_path / "rumqttd"
    stand_in.write_text(
        f"#!{sys.executable}\n"
        "import socket, sys, time, tomllib\n"
        "assert sys.argv[1] == '-c' and sys.argv[2].endswith('.toml'), sys.argv\n"
        "server = tomllib.load(open(sys.argv[2], 'rb'))['v5']['1']\n"
        "host, port = server['listen'].split(':')\n"
        "listening = socket.create_server((host, int(port)))\n"
        "time.sleep(600)\n"
    )
    stand_in.chmod(0o755)
    with RunningBroker(RUMQTTD, Programs(mosquitto="", rumqttd=str(stand_in))) as broker:
        socket.create_connection(("127.0.0.1", broker.port), 30).close()


def test_a_table_names_what_was_measured_on_what() -> None:
    measured = [idle("mosquitto", 0, 4), idle("embermq fsync", 0, 30)]
    text = io.StringIO()
    show(IDLE, summarise(IDLE, measured), MACHINE, Console(file=text, width=120))
    shown = text.getvalue()
    for part in ("mosquitto 2.1.2", "embermq 1.0 fsync", "AMD 7, 2 cores", "Python 3.11.7"):
        assert part in shown
    assert "x)" not in shown


@pytest.mark.parametrize(("named", "installs"), [([], True), (["MOSQUITTO=/opt/mosquitto"], False)])
def test_make_bench_installs_what_it_needs_and_no_more(named: list[str], installs: bool) -> None:
    told = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "bench", *named],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "MOSQUITTO"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ("scripts/debian-packages mosquitto\n" in told.stdout) is installs
    assert told.stdout.count("scripts/debian-packages") == installs
