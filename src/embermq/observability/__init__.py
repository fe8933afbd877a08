"""Metrics and logging, made from the frozen snapshots that other rooms offer.

Rules: nobody but `app` sees this room, and only this room knows Prometheus and log formats. No secret, payload or
password reaches a log.
"""
