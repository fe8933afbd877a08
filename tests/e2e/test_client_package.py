"""The client library as a user installs it from a clone: alone, typed, quick to import."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CLIENT = Path(__file__).parents[2] / "client"
IMPORT_S_MAX = 0.2
PROBE = "import time; began = time.perf_counter(); import embermq_client; print(time.perf_counter() - began)"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            folder,
            CLIENT,
        ],
        check=True,
        timeout=110,
    )
    (made,) = folder.iterdir()
    return made


@pytest.mark.promise("queues-37")
def test_the_wheel_holds_the_library_and_nothing_of_the_broker(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith("METADATA"))
        needs = [
            line for line in archive.read(metadata).decode().splitlines() if line.startswith("Requires-Dist")
        ]
    assert "embermq_client/py.typed" in names and not [name for name in names if name.startswith("embermq/")]
    assert needs == ["Requires-Dist: paho-mqtt<3,>=2.1"]


@pytest.mark.in_perf
@pytest.mark.promise("queues-37")
def test_it_is_imported_in_under_200_ms(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    took_s = min(
        float(
            subprocess.run(
                [sys.executable, "-c", PROBE], env=environment, check=True, capture_output=True
            ).stdout
        )
        for _ in range(8)
    )
    assert took_s < IMPORT_S_MAX
