"""Running a module of the tests as a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
# A package of the same name may be installed; it would be found instead.
_RUN = """
import runpy, sys, types
package = types.ModuleType("tests")
package.__path__ = [sys.argv.pop(1)]
sys.modules["tests"] = package
module = sys.argv[1]
del sys.argv[0]
runpy.run_module(module, run_name="__main__")
"""


def command(module: str, *arguments: object) -> list[str]:
    """The words that run `module`, for example "tests.hostile.storm", with arguments."""
    return [sys.executable, "-c", _RUN, str(TESTS), module, *map(str, arguments)]
