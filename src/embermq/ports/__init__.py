"""What the broker needs from the world: one file a need, domain nouns, guarantees in the docstrings.

Rules: interfaces and their errors only. Every adapter of a port passes the port's one contract suite
(`tests/contracts/`). The deciding rooms see ports and never an adapter; `app` alone brings them together.
"""
