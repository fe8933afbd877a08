"""Alerts of dead letters as signed HTTP requests, on a thread of their own [queues-36].

Rules: nobody waits for this room; an address is checked when it is connected to, and then that very address is used;
what is sent holds nothing of the message's body.
"""
