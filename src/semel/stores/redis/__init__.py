"""The store in Redis or Valkey, for every process and machine that can reach it.

`server` has the URL and the errors. `connection` has the protocol, and the connections of threads and event
loops; it alone uses redis-py's private names. `router` sends commands to the servers that have their keys.
`plan` names keys, and translates writes for `write.lua`, which makes them; `page.lua` reads items in order.
`interpreter` decides what is sent for each command, as generators without I/O. `store` puts them together.
"""

from semel.core.runtime import require

require("redis", "redis")

from semel.stores.redis.store import RedisStore, problems, provision  # noqa: E402 - it needs the driver

__all__ = ["RedisStore", "problems", "provision"]
