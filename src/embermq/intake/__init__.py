"""The one way in: packets of a connection to their handlers (`broker`), and a PUBLISH from its limits and rights
(`refusing`) to its record and its PUBACK or PUBREC (`publishing`).

Rules: no socket, file, clock, thread or randomness. A publisher is acknowledged only in `Broker.committed`, from a
receipt. `edge` drives this room; `app` builds it.
"""
