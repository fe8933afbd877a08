"""The scripts behind the make targets, with stand-ins for the programs of the system."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from embermq.pipeline.jars import read_jar_list

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 30
ENSUREPIP_MISSING = 'case "$2" in *ensurepip*) exit 1;; *) exit 0;; esac'


def run(
    script: str, programs: Mapping[str, str], folder: Path, *words: str, **environment: str
) -> tuple[int, str]:
    """Exit code and all that is shown, with `programs` (shell texts) in front of the system's."""
    for name, text in programs.items():
        program = folder / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    done = subprocess.run(
        ["/bin/bash", ROOT / "scripts" / script, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", **environment},
    )
    return done.returncode, done.stdout + done.stderr


def test_nothing_is_done_when_all_packages_are_there(tmp_path: Path) -> None:
    programs = {"dpkg-query": "printf installed", "apt-get": "echo called", "sudo": "echo called"}
    assert run("debian-packages", programs, tmp_path) == (0, "")


def test_who_may_not_install_is_told_what_to_type(tmp_path: Path) -> None:
    programs = {
        "dpkg-query": 'case "$*" in *strace) ;; *) printf installed;; esac',
        "apt-get": "echo called",
        "sudo": "exit 1",
        "id": "echo 1000",
    }
    code, told = run("debian-packages", programs, tmp_path)
    assert code == 1
    assert "need these Debian packages: strace\n" in told
    assert "Type: sudo apt-get install --yes --no-install-recommends strace\n" in told
    assert "called" not in told


def test_lists_are_refreshed_only_when_installing_fails(tmp_path: Path) -> None:
    programs = {
        "dpkg-query": "exit 1",
        "apt-get": f'echo "apt-get $1"; [ "$1" = update ] && touch {tmp_path}/fresh; [ -e {tmp_path}/fresh ]',
        "sudo": '[ "$1" = -n ] && shift; case "$1" in tee|chmod|rm) cat >/dev/null;; *) exec "$@";; esac',
        "id": "echo 1000",
    }
    code, told = run("debian-packages", programs, tmp_path)
    assert code == 0
    assert told.split("\n")[1:4] == ["apt-get install", "apt-get update", "apt-get install"]


def test_only_the_programs_that_are_not_there_are_installed_for_the_clients(tmp_path: Path) -> None:
    programs = {
        "dpkg-query": "printf installed",
        "apt-get": "echo called",
        "id": "echo 1000",
        "sudo": "exit 1",
    }
    others = {"node": "", "npm": "", "javac": "", "mvn": ""}
    code, told = run("debian-packages", programs | others, tmp_path, "clients", PATH=str(tmp_path))
    assert code == 1
    assert "need these Debian packages: golang-go chromium\n" in told
    everything = others | {"go": "", "chromium": ""}
    code, told = run("debian-packages", programs | everything, tmp_path, "clients", PATH=str(tmp_path))
    assert (code, told) == (0, "")


def test_clients_that_are_not_of_these_sources_are_told(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    for language in ("javascript", "go", "java"):
        (checkout / "tests" / "clients" / language).mkdir(parents=True)
        (checkout / "tests" / "clients" / language / "source").write_text(language)
    (checkout / "dashboard").mkdir()
    for source in ("package.json", "package-lock.json", ".npmrc"):
        (checkout / "dashboard" / source).write_text(source)
    (checkout / "scripts").mkdir()
    script = str(shutil.copy(ROOT / "scripts" / "foreign-clients", checkout / "scripts"))
    code, told = run(script, {"chromium": ""}, tmp_path, "--check")
    assert (code, told) == (
        1,
        "Not there, or not of these sources: javascript go java dashboard. Type: scripts/foreign-clients\n",
    )


@pytest.mark.parametrize(
    "lock",
    [
        *(f"tests/clients/{lock}" for lock in ("javascript/package-lock.json", "javascript/.npmrc")),
        *(f"tests/clients/{lock}" for lock in ("go/go.sum", "java/jars.txt")),
        *(f"dashboard/{lock}" for lock in ("package-lock.json", ".npmrc")),
    ],
)
def test_what_pins_the_clients_names_no_registry(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert not re.search(r"registry\.npm|\"resolved\"|proxy\.golang|maven\.org", text)


@pytest.mark.parametrize(
    "jars",
    ["tests/support/kafka_jars.txt"]
    + [f"src/embermq/pipeline/{kind}_jars.txt" for kind in ("connector", "delta", "s3")],
)
def test_lists_of_jars_are_well_formed_and_name_no_registry(jars: str) -> None:
    assert "://" not in (ROOT / jars).read_text()
    found = read_jar_list(ROOT / jars)
    assert len({jar.file_name for jar in found}) == len(found) > 1


@pytest.mark.parametrize("folder", ["tests/clients/javascript", "dashboard"])
def test_every_npm_package_has_a_hash(folder: str) -> None:
    lock = json.loads((ROOT / folder / "package-lock.json").read_text())
    packages = {name: found for name, found in lock["packages"].items() if name}
    assert packages
    assert all(found["integrity"].startswith("sha512-") for found in packages.values())


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("python3", ENSUREPIP_MISSING, "On Debian: apt-get install python3-venv"),
        ("python3", 'case "$1" in -VV) echo Python 3.9.2;; *) exit 1;; esac', "'python3' is Python 3.9.2."),
        ("unused", "", "found no 'python-that-is-not-there'"),
    ],
)
def test_a_python_that_will_not_do_is_told(tmp_path: Path, name: str, text: str, told: str) -> None:
    python = "python3" if name == "python3" else "python-that-is-not-there"
    code, shown = run("make-venv", {name: text}, tmp_path, PYTHON=python)
    assert code == 1
    assert told in shown


@pytest.mark.parametrize(
    ("version", "free_threaded", "will_do"),
    [
        ("3.10.13", False, False),
        ("3.11.0", False, True),
        ("3.14.10", False, True),
        ("3.14.10", True, False),
        ("3.15.0", False, False),
    ],
)
def test_pythons_without_packages_are_refused_before_pip(
    tmp_path: Path, version: str, free_threaded: bool, will_do: bool
) -> None:
    """By the very question that make-venv asks, in this Python with another one's number."""
    pretence = (
        "import platform, sys, sysconfig; "
        f"sys.version_info = ({version.replace('.', ', ')}, 'final', 0); "
        f"sysconfig.get_config_var = lambda name: {int(free_threaded)}; "
        "exec(sys.argv[1])"
    )
    stand_in = f'''case "$*" in
    -VV) echo Python {version};;
    -m*) echo made;;
    *ensurepip*) ;;
    *) exec {sys.executable} -c "{pretence}" "$2";;
    esac'''
    code, shown = run("make-venv", {"python3": stand_in}, tmp_path, PYTHON="python3")
    if will_do:
        assert (code, shown) == (0, "made\n")
    else:
        assert code == 1
        assert shown.count("\n") == 1
        assert f"'python3' is Python {version}. Name another one" in shown
    if not free_threaded:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert SpecifierSet(project["requires-python"]).contains(version) == will_do
