"""The life of clients: CONNECT and CONNACK, enhanced authentication, keep-alive, takeover, session expiry, wills,
SUBSCRIBE, windows and packet ids, acknowledgements, and the state that they share (`state`, `session`, `link`, `tick`).

Rules: no socket, file, clock, thread or randomness; time comes in as `Tick.now_ms`, bytes leave through `Link.out`,
what must be durable leaves through `Tick.writes`. An acknowledgement that promises durability waits for the receipt of
its commit. `intake` takes packets apart and calls this room; `delivery` and `queues` extend it (`delivery_path`,
`durable_queues`).
"""
