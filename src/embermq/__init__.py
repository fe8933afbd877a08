"""EmberMQ: an MQTT broker whose persistent sessions lose nothing, with a data pipeline on Apache Spark.

Rooms and who may import whom: `.importlinter` at the root of the repository.
"""

__version__ = "0.1.0"
