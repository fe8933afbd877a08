"""What `spark-submit` runs: the pipeline's driver, in a Spark that is there already.

    spark-submit … submitted.py FOLDER [--config FILE] [--set SECTION.KEY=VALUE]

`FOLDER` is the driver's own. What else it needs comes from Kafka, SQL and settings, the environment's among them.
`embermq pipeline submit` says the whole command.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

EXIT_REFUSED = 78


def main() -> int:
    """Run the driver until it is told to end; the exit code."""
    sys.path[:] = [place for place in sys.path if Path(place).absolute() != Path(__file__).absolute().parent]
    from embermq.app.config import load_configuration
    from embermq.app.errors import EmberError, UserError
    from embermq.app.pipeline_side import driver_settings
    from embermq.app.slots import check_no_slots
    from embermq.pipeline.__main__ import run_driver
    from embermq.pipeline.errors import PipelineError
    from embermq.pipeline.session import submitted_master

    parser = argparse.ArgumentParser(prog="submitted.py", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    words = parser.parse_args()
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        parser.error("this is run by spark-submit; embermq pipeline start runs the pipeline without it")
    options: dict[str, tuple[str, object]] = {"pipeline.enabled": ("spark-submit", True)}
    if master := submitted_master():
        options["pipeline.master"] = ("spark-submit", "local" if master.startswith("local") else master)
    try:
        found = load_configuration(
            config_file=words.config, environment=os.environ, assignments=words.set, options=options
        )
        check_no_slots(found.settings)
        if found.settings.rules:
            raise UserError(
                "rules: the broker takes what they make over its control socket, which is not here; let the broker run "
                "its pipeline (pipeline.enabled), or leave rules out"
            )
        return run_driver(driver_settings(found.settings), words.folder, elsewhere=True)
    except (EmberError, PipelineError) as error:
        logging.getLogger("embermq").error("%s", error)
        return EXIT_REFUSED


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)  # threads of Spark's client would wait for a JVM that is gone
