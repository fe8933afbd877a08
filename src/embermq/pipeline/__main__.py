"""`python -m embermq.pipeline --data-dir DIR --settings-json -`: the driver, started by the broker's supervisor.

With `-` the settings are one line of JSON on standard input, which then stays open as long as the parent lives.
"""

import argparse
import logging
import os
import sys
import time
from pathlib import Path

import msgspec

from embermq.pipeline.driver import Driver, lead_process_group, stop_when_parent_goes
from embermq.pipeline.errors import PipelineError
from embermq.pipeline.places import ENDS_S, Places, lock_driver
from embermq.pipeline.settings import DriverSettings, check_settings

EXIT_REFUSED = 78


def main() -> int:
    """Read the settings, run the driver, return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m embermq.pipeline", description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument(
        "--settings-json", required=True, metavar="FILE", help="a file, or - for standard input"
    )
    arguments = parser.parse_args()
    from_parent = arguments.settings_json == "-"
    text = sys.stdin.buffer.readline() if from_parent else Path(arguments.settings_json).read_bytes()
    try:
        settings = msgspec.json.decode(text, type=DriverSettings)
        return run_driver(settings, arguments.data_dir, from_parent=from_parent)
    except (msgspec.DecodeError, PipelineError) as error:
        _start_logging()
        logging.getLogger(__name__).error("%s", error)
        return EXIT_REFUSED
    except Exception:
        # With the thread that reads standard input, Python would abort instead of ending, and say nothing of this.
        logging.getLogger(__name__).exception("the driver ends")
        return 1


def run_driver(
    settings: DriverSettings, folder: Path, *, from_parent: bool = False, elsewhere: bool = False
) -> int:
    """The driver on a folder that it has for itself, until it ends. Raises PipelineError for what cannot be.

    `elsewhere`: without the broker's data directory, in a JVM of spark-submit.
    """
    _start_logging()
    lead_process_group()
    settings = msgspec.structs.replace(settings, elsewhere=elsewhere)
    check_settings(settings)
    os.nice(settings.nice)  # the JVM and Spark's Python processes inherit it
    lock_driver(Places(folder), ENDS_S)  # the one before may be about to end
    driver = Driver(settings, folder)
    if from_parent:
        stop_when_parent_goes(driver)
    return driver.run()


def _start_logging() -> None:
    logging.basicConfig(handlers=[_log_handler()])  # others from WARNING on
    logging.getLogger("embermq").setLevel(logging.INFO)


def _log_handler() -> logging.Handler:
    """Lines with times as the broker tells them: UTC, with offset and milliseconds."""
    form = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    form.converter = time.gmtime
    form.default_time_format, form.default_msec_format = "%Y-%m-%dT%H:%M:%S", "%s.%03d+00:00"
    handler = logging.StreamHandler()
    handler.setFormatter(form)
    return handler


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)  # threads of Spark's client would wait for a JVM that is gone
