"""The only rooms that touch the world: each package speaks to one kind of store.

Rules: an adapter sees ports and values, never the deciding rooms and never another adapter.
"""
