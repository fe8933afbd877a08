"""Seeds for the tests that take as many as one likes."""

from __future__ import annotations

import pytest

AT_ONCE = 15
"""Seeds of one test: workers share them out."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`seeds` are some of those that the options name."""
    if "seeds" in metafunc.fixturenames:
        first, count = metafunc.config.getoption("--first-seed"), metafunc.config.getoption("--seeds")
        end = first + count
        parts = [range(start, min(start + AT_ONCE, end)) for start in range(first, end, AT_ONCE)]
        metafunc.parametrize("seeds", parts, ids=[f"{part.start}-{part.stop - 1}" for part in parts])
