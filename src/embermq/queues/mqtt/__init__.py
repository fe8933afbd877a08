"""Durable queues on the wire: PUBLISH, wills and control messages in; SUBSCRIBE, deliveries and their settling out.

Joins the core of `embermq.queues` to the broker's rooms: this room alone knows both. `side.MqttQueues` is the door,
and what `sessions.durable_queues` asks for.
"""
