"""What operators and their tools ask and do: one table of operations, and HTTP, gRPC and the control socket from it.

Rules: `operations` says what there is; desks carry it out on the broker's loop and know no protocol; handlers of a
protocol decide nothing; errors are application/problem+json, or a gRPC status, with the same words. `service` is what
every broker tells without being asked for a token. Only `app` makes desks and servers. `queue_admin_pb2` is written by
scripts/rpc-messages.
"""
