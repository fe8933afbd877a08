"""SQL servers: how they are named, reached, encrypted, and given up on.

Rules: a password is in no text that may be shown; every wait has an end. `settings` and `database_url` import no
driver. Used by adapters/sql in the broker and by the pipeline's sinks in their own process, which do not know one
another.
"""
