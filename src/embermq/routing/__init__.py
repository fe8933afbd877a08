"""Who gets a message: subscriptions by topic (`router`, `match_cache`), the member of a shared subscription whose turn
it is (`shared_choice`), the logs of shared subscriptions of applications, and retained messages.

Rules: no I/O, no clock. It answers who, never how: sending is for `delivery`. It names sessions in annotations and
calls nothing of them. `sessions`, `intake`, `durability` and `delivery` call it.
"""
