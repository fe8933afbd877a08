"""What operators and their tools read over HTTP, over one service façade.

Rules: handlers translate between HTTP and `service.AdminService` and decide nothing; errors are
application/problem+json; every answer is made at once, nothing here waits for a store. The façade is implemented in
`app`, which is also the only caller.
"""
