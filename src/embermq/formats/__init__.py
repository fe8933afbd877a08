"""The bytes that are kept or handed to another process, each layout in one file: the record of the message log
(`log_record`), the same in Kafka, segment files, keys and values in Redis, the tables that the pipeline writes and the
broker reads.

Rules: a layout has its one home here, whoever writes or reads it; nothing in this room writes to disk or network, and
only `segment_reader` reads. What cannot be read raises its module's error, and `damaged_records` counts it.
The broker, its adapters and the pipeline use this room.
"""
