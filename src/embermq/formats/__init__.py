"""Bytes of the message log on disk: segment files, their frames, and how to read them.

Rules: layouts have one home, here; nothing in this room writes. The broker and the pipeline both read segments with it.
"""
