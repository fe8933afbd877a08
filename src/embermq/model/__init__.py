"""The values everything speaks of: message, log record, session, queue row, and what one tick makes durable.

Rules: values only, frozen and slotted; no I/O, no clock. The layout of a log record has its one home in
`log_record`; the broker writes it, the Spark pipeline reads it. Any room above may import this one.
"""
