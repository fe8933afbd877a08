"""Configuration and wiring: the only room that constructs adapters and knows every other room.

Rules: `config` composes the rooms' settings into one schema; what a user may get wrong is refused here, by name and
with where it came from. Nothing that decides about messages lives here. Called by `cli` and by tests.
"""
