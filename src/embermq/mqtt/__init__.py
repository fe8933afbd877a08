"""MQTT itself, without I/O: topic names and filters (`topics/`), and the bytes of packets (`wire/`).

Rules: no socket, clock or state of the broker; the wire may call topics, topics call nothing. Every room may call it.
"""
