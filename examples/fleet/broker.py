"""A broker of one's own: started on free ports and a temporary data directory, gone afterwards."""

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

EMBERMQ = Path(sys.executable).parent / "embermq"
READY_S = 60.0
STOP_S = 15.0
PR_SET_PDEATHSIG = 1
"""Of Linux: the signal that a process gets when its parent dies."""


class BrokerError(Exception):
    """The broker did not start; the text is what it said."""


@asynccontextmanager
async def running_broker(application_ids: str) -> AsyncIterator[int]:
    """Run `embermq run` with its pipeline; gives its MQTT port. Clients whose ids match are APPLICATION clients."""
    with TemporaryDirectory(prefix="embermq-fleet-", ignore_cleanup_errors=True) as data_dir:
        process = await asyncio.create_subprocess_exec(
            *(EMBERMQ, "run", "--data-dir", data_dir),
            *("--set", "listeners.mqtt=127.0.0.1:0"),
            *("--set", "listeners.http=127.0.0.1:0"),
            *("--set", "listeners.grpc=127.0.0.1:0"),
            *("--set", f"clients.application_ids={application_ids}"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the demo, which then stops the broker in order
            preexec_fn=partial(_end_with, os.getpid()),
        )
        try:
            async with asyncio.timeout(READY_S):
                port = await _port_when_ready(process)
            yield port
        finally:
            await asyncio.shield(_stop(process))


def _end_with(parent: int) -> None:
    """In the broker's process, before its program: it gets SIGTERM when the demo is gone, however that was killed."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


async def _port_when_ready(process: asyncio.subprocess.Process) -> int:
    """The start-up block names the address of each listener; its last line is `ready`."""
    assert process.stdout is not None
    port = 0
    lines: list[str] = []
    async for raw in process.stdout:
        line = raw.decode(errors="replace").strip()
        lines.append(line)
        name, _, value = line.partition(" ")
        if name == "mqtt":
            port = int(value.rpartition(":")[2])
        elif name == "ready":
            return port
    raise BrokerError("\n".join(lines))


async def _stop(process: asyncio.subprocess.Process) -> None:
    """SIGTERM takes the broker's pipeline along."""
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()
