"""Session data in Redis 7 or Redis Cluster.

Only here is the driver imported (extra `servers`), and only `app` constructs what is here, when `stores.session` names
a Redis. `link` speaks to the servers: batches, order per client, retries; the stores are written on top of it. The
scripts that run inside Redis live in `scripts/`, one .lua file each.
"""
