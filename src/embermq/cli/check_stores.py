"""`embermq check-stores`: whether the stores belong together, before a broker starts on them."""

from __future__ import annotations

import typer

from embermq.cli.options import AsJson, Assignments, ConfigFile, DataDir, configuration
from embermq.cli.terminal import print_json, table

LOST = 3
HEADINGS = ("store", "state", "")
NAMES = 3


def command(
    *,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Check that restored stores belong together. Changes nothing.

    Looks at the data directory, Kafka, Redis and the SQL server, before the broker starts on them. Ends with 3 when
    something is lost.
    """
    from embermq.app.stores_check import check_stores

    found = check_stores(configuration(config, assignments, data_dir).settings)
    if as_json:
        print_json(found)
    else:
        for line in table([HEADINGS, *((one.store, one.state, one.text) for one in found)], names=NAMES):
            print(line.rstrip())
    if any(one.state == "lost" for one in found):
        raise typer.Exit(LOST)
