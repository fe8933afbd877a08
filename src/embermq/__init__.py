"""EmberMQ: an MQTT broker whose persistent sessions lose nothing, with a data pipeline on Apache Spark.

Rooms and who may import whom: `.importlinter` at the root of the repository.
"""

from embermq.compiled import HOT_PATH as HOT_PATH

__version__ = "0.1.0"
__date__ = "2026-11-01"
"""Of this build: no clock can be right that is before it."""
