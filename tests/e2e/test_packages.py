"""The distributions as somebody publishes and installs them: a source archive, and the wheel that is built from it."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from tests.support.broker_process import START_S, BrokerProcess
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_for

from embermq import __version__
from embermq.mqtt.wire.packets import Subscription

ROOT = Path(__file__).parents[2]
BUILD_S = 240
BYTES_MAX = 100_000_000
"""What an installation without extras may take."""
OLDER = "0.0.9"
"""A version before this one."""


def built(command: list[str | Path], source: Path, folder: Path) -> Path:
    """The one file that the command makes in `folder`."""
    subprocess.run([sys.executable, "-m", *command], cwd=source, check=True, timeout=BUILD_S)
    (made,) = folder.iterdir()
    return made


@pytest.mark.parametrize(
    ("source", "needs", "holds"),
    [
        (
            ".",
            "msgspec>=",
            ["embermq/py.typed", "embermq/pipeline/delta_jars.txt", "embermq/admin/page/app.js"],
        ),
        ("bench", f"embermq=={__version__}", ["embermq_bench/cli.py", "embermq_bench/py.typed"]),
        (
            "migrate",
            f"embermq[pipeline,servers]=={__version__}",
            ["embermq_migrate/import_many.lua", "embermq_migrate/migration.sql", "embermq_migrate/py.typed"],
        ),
    ],
)
def test_a_wheel_comes_of_the_source_archive(
    tmp_path: Path, source: str, needs: str, holds: list[str]
) -> None:
    archives, wheels = tmp_path / "sdist", tmp_path / "wheel"
    archive = built(["hatchling", "build", "-t", "sdist", "-d", archives], ROOT / source, archives)
    pip = ["pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    wheel = built([*pip, "-w", wheels, archive], tmp_path, wheels)
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    lines = metadata(wheel)
    assert set(holds) <= set(names)
    assert not [name for name in names if name.startswith("tests/") or name.endswith(".pyc")]
    assert f"Version: {__version__}" in lines
    assert any(line.startswith(f"Requires-Dist: {needs}") for line in lines)


def test_addresses_are_those_that_whoever_builds_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is invented; with one, no link of the README is left that leads to a file beside it."""
    readme = (ROOT / "README.md").read_text()
    make = runpy.run_path(str(ROOT / "hatch_build.py"))["CustomMetadataHook"](str(ROOT), {}).update
    monkeypatch.delenv("EMBERMQ_PROJECT_URL", raising=False)
    plain: dict[str, Any] = {}
    make(plain)
    assert plain == {"readme": {"content-type": "text/markdown", "text": readme}}
    monkeypatch.setenv("EMBERMQ_PROJECT_URL", "https://forge.example/e/m/")
    named: dict[str, Any] = {}
    make(named)
    assert named["urls"]["Source"] == "https://forge.example/e/m"
    links = re.findall(r"\]\(([^)\s]+)", named["readme"]["text"])
    assert len(links) == len(re.findall(r"\]\(", readme)) > 20
    assert all(link.startswith("https://forge.example/e/m/blob/main/") for link in links)


def test_a_wheel_is_for_one_python_where_it_is_asked_to_be_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make release-check` makes one and installs it."""
    script = tmp_path / "scripts" / "compile"
    script.parent.mkdir()
    script.write_text("open('compiled', 'a').write('once')")
    monkeypatch.chdir(tmp_path)
    make = runpy.run_path(str(ROOT / "hatch_build.py"))["CustomBuildHook"]
    hook = make(str(tmp_path), {}, None, None, "", "wheel")
    data: dict[str, Any] = {"artifacts": []}
    monkeypatch.setenv("EMBER_COMPILED", "0")
    hook.initialize("standard", data)
    monkeypatch.setenv("EMBER_COMPILED", "1")
    hook.initialize("editable", data)
    assert data == {"artifacts": []}
    hook.initialize("standard", data)
    assert (tmp_path / "compiled").read_text() == "once"
    assert data == {"artifacts": ["/src/embermq/_compiled/"], "pure_python": False, "infer_tag": True}
    script.write_text("raise SystemExit(1)")
    with pytest.raises(subprocess.CalledProcessError):
        hook.initialize("standard", data)


def metadata(wheel: Path) -> list[str]:
    """Its lines."""
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith("METADATA"))
        return opened.read(name).decode().splitlines()


def collect(requires: Iterable[str], found: dict[str, Distribution]) -> None:
    """What is needed without extras, and what that needs."""
    for wanted in map(Requirement, requires):
        name = wanted.name.lower()
        if name not in found and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
            found[name] = distribution(name)
            collect(found[name].requires or (), found)


def files(one: Distribution) -> Iterator[Path]:
    """Those that are there, without what is a command."""
    paths = (Path(str(file.locate())) for file in one.files or () if file.parts[0] != "..")
    return (path for path in paths if path.exists())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    wheels = tmp_path_factory.mktemp("wheel")
    words: list[str | Path] = ["pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    return built([*words, "--no-build-isolation", "-w", wheels, ROOT], wheels, wheels)


@pytest.fixture
def packages(wheel: Path) -> dict[str, Distribution]:
    """What it needs."""
    requires = [line.partition(": ")[2] for line in metadata(wheel) if line.startswith("Requires-Dist: ")]
    found: dict[str, Distribution] = {}
    collect(requires, found)
    return found


@pytest.fixture
def place(tmp_path: Path, packages: dict[str, Distribution]) -> Path:
    """An environment that has nothing but what the package asks for."""
    place = tmp_path / "environment"
    venv.create(place)
    (site,) = place.glob("lib/python*/site-packages")
    for one in packages.values():
        root = Path(str(one.locate_file("")))
        for top in {path.relative_to(root).parts[0] for path in files(one)}:
            if not (site / top).exists():
                (site / top).symlink_to(root / top)
    return place


def install(wheel: Path, place: Path, *options: str) -> Path:
    """By pip into the environment; returns the program. What is not compiled beforehand is there sooner."""
    target = ["--python", str(place / "bin" / "python"), "install", "--quiet", "--no-deps", "--no-index"]
    target += ["--no-compile", *options, str(wheel)]
    words = [sys.executable, "-m", "pip", "--disable-pip-version-check", *target]
    subprocess.run(words, check=True, timeout=BUILD_S)
    return place / "bin" / "embermq"


def of_before(wheel: Path, folder: Path) -> Path:
    """The same package in an older version, with a module that there is no more."""
    older = folder / wheel.name.replace(__version__, OLDER)
    with zipfile.ZipFile(wheel) as now, zipfile.ZipFile(older, "w") as then:
        for name in now.namelist():
            data = now.read(name)
            if name.endswith(("/METADATA", "/RECORD", "embermq/__init__.py")):
                data = data.replace(__version__.encode(), OLDER.encode())
            if name.endswith("/RECORD"):
                data += b"embermq/gone.py,,\n"
            then.writestr(name.replace(f"-{__version__}.", f"-{OLDER}."), data)
        then.writestr("embermq/gone.py", "")
    return older


def test_pip_puts_a_new_version_in_the_place_of_the_old_one_and_it_has_the_data(
    wheel: Path, place: Path, tmp_path: Path
) -> None:
    program = install(of_before(wheel, tmp_path), place)
    settings = {"pipeline.enabled": False}

    def version() -> str:
        words = [str(program), "--version"]
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=START_S).stdout

    async def keeps(broker: BrokerProcess) -> None:
        client = MqttClient("one")
        await client.connect(broker.port, expiry_s=3_600)
        await client.subscribe(Subscription("hello/#", 1))
        client.close()
        await client.ended
        other = MqttClient("two")
        await other.connect(broker.port)
        await other.publish("hello/world", b"hi", qos=1)
        other.close()

    async def gets(broker: BrokerProcess) -> None:
        client = MqttClient("one")
        assert (await client.connect(broker.port, clean_start=False, expiry_s=3_600)).session_present
        await wait_for(lambda: [message.payload for message in client.messages] == [b"hi"])
        client.close()

    assert version() == f"embermq {OLDER}\n"
    with BrokerProcess(tmp_path / "data", settings=settings, installed=program) as broker:
        run(keeps(broker))
    assert install(wheel, place, "--upgrade") == program
    assert version() == f"embermq {__version__}\n" and not list(place.rglob("gone.py"))
    with BrokerProcess(tmp_path / "data", settings=settings, installed=program) as broker:
        run(gets(broker))


def test_without_extras_it_is_the_broker_with_embedded_stores(
    wheel: Path, packages: dict[str, Distribution], place: Path, tmp_path: Path
) -> None:
    program = install(wheel, place)
    size = sum(path.stat().st_size for one in packages.values() for path in files(one))
    assert size < BYTES_MAX, size

    with BrokerProcess(tmp_path / "data", pipeline=True, installed=program) as broker:
        assert "pipeline   off; Spark: pip install 'embermq[pipeline]'" in broker.output()

        async def scenario() -> None:
            client = MqttClient("one")
            await client.connect(broker.port)
            await client.subscribe(Subscription("hello/#", 1))
            await client.publish("hello/world", b"hi", qos=1)
            await wait_for(lambda: [message.payload for message in client.messages] == [b"hi"])

        run(scenario())
    servers = ["--set", "stores.log=kafka://127.0.0.1:1", "--set", "stores.session=redis://127.0.0.1:1"]
    for words, extra in [
        (["run", "--set", "pipeline.enabled=true"], "pipeline"),
        (["pipeline", "compact"], "pipeline"),
        (["run", *servers], "servers"),
    ]:
        command = [str(program), *words, "--data-dir", str(tmp_path / extra)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_S)
        assert (done.returncode, f"pip install 'embermq[{extra}]'" in done.stderr) == (1, True), done.stderr
