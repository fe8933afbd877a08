"""The values everything speaks of: message, session, queue row, counters, and what one tick makes durable.

Rules: values only, frozen and slotted (`counters` alone counts); no I/O, no clock, and no layout of bytes: those are
in `formats`. Any room above may import this one.
"""
