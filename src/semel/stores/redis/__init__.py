"""The store in Redis or Valkey, for every process and machine that can reach it.

`address` reads the URL. `plan` is pure: commands as scripts with keys and arguments, answers as items. `talk`
says what is sent to which server, and in what order, as generators; `slots` knows the nodes of a cluster.
`lines` are the connections, for threads and for event loops. `faults` translates errors. `bell` listens for
what others write. The scripts are in Lua, each in its file. `store` puts them together.
"""

from semel.extras import require

require("redis", "redis")

from semel.stores.redis.schema import problems, provision  # noqa: E402 - it needs the driver
from semel.stores.redis.store import RedisStore  # noqa: E402 - it needs the driver

__all__ = ["RedisStore", "problems", "provision"]
