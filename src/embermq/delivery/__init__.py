"""Who gets a message, when, how often: `direct` for receivers that keep nothing, `device` for DEVICE sessions,
`application` for APPLICATION sessions.

Rules: built on the sessions and windows of `sessions`; no I/O but through ports; a delivery to a persistent session
is either elided (QoS 1, acknowledged before it had to be written) or written before it is sent.
"""
