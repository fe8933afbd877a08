"""Membership in etcd.

Only this room speaks to it, over gRPC, with the few messages of its public API that stand in `etcd.proto`. Blocking
calls on threads of their own: asyncio's gRPC has one event loop in a process, and the API's server is on that.
"""
