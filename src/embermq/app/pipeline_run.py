"""`embermq pipeline start`: the pipeline without the broker, which has `pipeline.enabled = false` then."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from embermq.app.config import Settings
from embermq.app.errors import StartError, UserError
from embermq.app.news import PipelineNews
from embermq.app.pipeline_side import driver_settings, missing_for_spark
from embermq.app.settings import SQLITE
from embermq.app.slots import check_no_slots
from embermq.observability.logs import configure_logging
from embermq.pipeline.places import Places, lock_driver
from embermq.pipeline.status import read_status
from embermq.pipeline.supervisor import PipelineSupervisor

LOG = logging.getLogger("embermq")
LOOK_S = 1.0


def run_pipeline(settings: Settings) -> int:
    """Until SIGTERM or SIGINT; the exit code. Raises StartError, UserError, DriverLockError."""
    check_no_slots(settings)
    settings = replace(settings, pipeline=replace(settings.pipeline, enabled=True))
    if problem := missing_for_spark(settings):
        raise StartError(problem)
    places = Places(Path(settings.data_dir))
    if settings.stores.log == SQLITE and not places.broker.is_file():
        raise UserError(f"{places.data_dir} is not the data directory of a broker; name it with --data-dir")
    os.close(lock_driver(places))  # the driver takes it again: here to say so before anything is moved
    configure_logging(settings.logging)
    os.umask(0o077)
    supervisor = PipelineSupervisor(driver_settings(settings), places.data_dir, is_apart=True)
    return asyncio.run(_run(supervisor, places))


async def _run(supervisor: PipelineSupervisor, places: Places) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    news = PipelineNews()
    await supervisor.start()
    sys.stdout.write(f"the pipeline starts on {places.data_dir.absolute()}; Ctrl-C ends it\n")
    sys.stdout.flush()
    while not stop.is_set():
        found = await asyncio.to_thread(read_status, places.data_dir)
        supervisor.note(found)
        for level, text in news.since(supervisor.statistics(), found):
            LOG.log(level, text)
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await stop.wait()
    await supervisor.stop()
    return 0
