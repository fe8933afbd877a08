"""Configuration and wiring: constructs the adapters of a running broker, and knows every other room below.

Rules: `config` composes the rooms' settings into one schema; what a user may get wrong is refused here, by name and
with where it came from. Nothing that decides about messages lives here. Called by `cli` and by tests.
"""
