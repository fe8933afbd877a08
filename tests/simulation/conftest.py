"""Seeds for the tests that take as many as one likes."""

from __future__ import annotations

import pytest

AT_ONCE = 15
"""Seeds of one test: workers share them out."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`seeds` and `cluster_seeds` are some of those that the options name."""
    for name, option in (("seeds", "--seeds"), ("cluster_seeds", "--cluster-seeds")):
        if name in metafunc.fixturenames:
            first = metafunc.config.getoption("--first-seed")
            end = first + metafunc.config.getoption(option)
            parts = [range(start, min(start + AT_ONCE, end)) for start in range(first, end, AT_ONCE)]
            metafunc.parametrize(name, parts, ids=[f"{part.start}-{part.stop - 1}" for part in parts])
