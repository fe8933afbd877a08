"""The MQTT wire, sans-I/O: packets, properties, reason codes and the codec for 3.1, 3.1.1 and 5.0.

Rules of the room:

* Bytes in, values out, and the other way round. No socket, clock, thread or randomness.
* What can be judged from one packet and the order of packets on one connection is judged here; what needs a
  session, a user or a limit of the broker is judged there.
* The peer's faults are `errors.ProtocolError` with a reason code and the clause; our own are
  `errors.EncodeError`. No input makes anything else come out.

It may call `embermq.mqtt.topics` only; every room above may call it.
"""
