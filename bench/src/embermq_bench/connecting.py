"""Opening many connections."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Sequence

from embermq_bench.errors import LoadError


async def bounded(steps: Sequence[Awaitable[None]], at_once: int) -> None:
    """Await all steps, at most `at_once` together; the first failure ends them all and is raised."""
    gate = asyncio.Semaphore(at_once)

    async def one(step: Awaitable[None]) -> None:
        async with gate:
            await step

    tasks = [asyncio.ensure_future(one(step)) for step in steps]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def open_files(connections: int) -> None:
    """Raise the limit of open files to what is needed. Raises LoadError when that is forbidden."""
    needed = connections + 64
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise LoadError(
            f"{connections} connections need {needed} open files; the system allows {hard} (ulimit -Hn)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
