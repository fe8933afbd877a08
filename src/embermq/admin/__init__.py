"""What operators and their tools read and do over HTTP and gRPC, over façades that know neither.

Rules: handlers translate between a protocol and `service`, `session_service` or `queue_service`, and decide nothing;
errors are application/problem+json, or a gRPC status, with the same words. The façades are implemented in `app`, which
is also the only caller. `queue_admin_pb2` is written by scripts/rpc-messages.
"""
