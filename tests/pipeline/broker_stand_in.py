"""A process that supervises the pipeline as the broker does, so that a test can kill it.

Arguments: the data directory and the settings as JSON. Runs until it is killed.
"""

import asyncio
import sys
from pathlib import Path

import msgspec

from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.supervisor import PipelineSupervisor


async def main() -> None:
    settings = msgspec.json.decode(sys.argv[2], type=DriverSettings)
    await PipelineSupervisor(settings, Path(sys.argv[1])).start()
    await asyncio.Event().wait()


asyncio.run(main())
