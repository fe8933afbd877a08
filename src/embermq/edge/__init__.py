"""asyncio: listeners, connections, the tick, backpressure, shutdown.

Rules: bytes and time enter here; what to do with them is decided in `intake` and `delivery`. One tick: read every
ready socket, decide, commit what must be durable, deliver, write once to every socket that has something to say.
"""
