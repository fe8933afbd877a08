"""A process whose wall clock a test moves: builds stepped.c."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("stepped.c")


class SteppedClock:
    """`env` is for the process; `ahead_by` moves its wall clock at any time."""

    def __init__(self, work_dir: Path) -> None:
        self._library = work_dir / "stepped.so"
        self._by = work_dir / "stepped-by"
        self._by.write_bytes(bytes(8))
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-o", self._library, SOURCE, "-ldl"],
            check=True,
            timeout=60,
        )

    @property
    def env(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "STEPPED_BY": str(self._by)}

    def ahead_by(self, milliseconds: int) -> None:
        """So far from the real time, whatever it was before."""
        with open(self._by, "r+b", buffering=0) as file:
            file.write(milliseconds.to_bytes(8, "little", signed=True))
