"""Listeners, the tick, backpressure and shutdown: asyncio around the room that decides."""
