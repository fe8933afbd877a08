"""`embermq check-stores`: whether the stores belong together, before a broker starts on them."""

from __future__ import annotations

from embermq.app.config import Settings
from embermq.cli.options import with_settings
from embermq.cli.terminal import Told, table

LOST = 3
HEADINGS = ("store", "state", "")
NAMES = 3


@with_settings
def command(settings: Settings) -> Told:
    """Check that restored stores belong together. Changes nothing.

    Looks at the data directory, Kafka, Redis and the SQL server, before the broker starts on them. Ends with 3 when
    something is lost.
    """
    from embermq.tools.stores_check import check_stores

    found = check_stores(settings)
    lines = table([HEADINGS, *((one.store, one.state, one.text) for one in found)], names=NAMES)
    return Told(found, lines, LOST if any(one.state == "lost" for one in found) else 0)
