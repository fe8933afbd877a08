"""The distributions as somebody publishes and installs them: a source archive, and the wheel that is built from it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from embermq import __version__

ROOT = Path(__file__).parents[2]
BUILD_S = 110


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
            ["embermq/py.typed", "embermq/pipeline/delta_jars.txt"],
        ),
        ("bench", f"embermq=={__version__}", ["embermq_bench/cli.py", "embermq_bench/py.typed"]),
        (
            "migrate",
            f"embermq[servers]=={__version__}",
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
        (metadata,) = (name for name in names if name.endswith("METADATA"))
        lines = opened.read(metadata).decode().splitlines()
    assert set(holds) <= set(names)
    assert not [name for name in names if name.startswith("tests/") or name.endswith(".pyc")]
    assert f"Version: {__version__}" in lines
    assert any(line.startswith(f"Requires-Dist: {needs}") for line in lines)
