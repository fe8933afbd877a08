"""The room that decides: connect, publish, subscribe, retain, will, takeover; sessions and in-flight windows.

Rules: no socket, file, clock, thread or randomness; time comes in as `Tick.now_ms`, bytes leave through
`Link.out`, what must be durable leaves through `Tick.writes`. An acknowledgement that promises durability is made
only in `Broker.committed`, from a receipt. `server` drives this room; `delivery` extends it.
"""
