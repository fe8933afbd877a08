"""Load scenarios: a black-box MQTT client that measures any broker.

What lives here: the client (`client`, `publisher`, `subscriber`), the pacing of load (`pacing`), exact
counting by sequence number (`tally`), latency (`latency`), what the broker's processes cost
(`process_cost`), the runs (`scenario`, `idle`) and what is shown of them (`report`, `progress`).

Rules:
1. A broker is seen through its socket and `/proc` alone. From `embermq` come the packets of MQTT and the names of
   queues; nothing in `embermq` imports this package.
2. Latency counts from the moment a message was *meant* to leave, so a stalled broker cannot hide its stall.
3. Loss, doubles and reordering are counted, never sampled.

Called by its command (`cli`), `benchmarks/` and tests.
"""
