"""Durable queues: names, partitions, groups, leases, retries, dead letters. It decides; others store and send.

Rules: no socket, file, clock, thread or randomness, every event comes with `now_ms` (Unix milliseconds); what has to
be durable goes into `model.queue_rows.QueueWrites`, what has to be sent comes back as deliveries; nothing here walks
over all messages of a queue to serve one. `queues.Queues` is the door.
"""
