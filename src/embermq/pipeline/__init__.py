"""The data pipeline: Spark queries, in PySpark, from the message log to everything that is bulk.

Rules: native Spark SQL first, Python only in sources and sinks; a sink is idempotent by source position and keeps
its own progress, a checkpoint is never trusted; the broker never waits for anything here. `transforms` sees no
source, sink or job. What the broker process imports (`settings`, `places`, `supervisor`, `status`) stays light:
no pyspark, no pandas, no pyarrow. The driver is a process of its own: `python -m embermq.pipeline`.
"""
