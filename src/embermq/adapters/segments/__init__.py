"""The embedded message log: segment files that are appended to, and the tick's way through them.

Rules: a frame is on disk, as the durability level says, before anybody is told; frame N+1 is written after frame N is
synced; what a failed write or sync has left is not written over. Layouts and reading are in `embermq.formats`.
"""
