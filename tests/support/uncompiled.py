"""Tests run the source, also where the hot path is compiled, unless EMBER_COMPILED says otherwise (`make
test-compiled`). Imported before anything of EmberMQ."""

import os

os.environ.setdefault("EMBER_COMPILED", "0")
