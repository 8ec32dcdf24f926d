"""The store in Redis or Valkey, for every process and machine that can reach it.

`address` reads the URL. The pure half: `names` says what keys are called, `plan` what a table's commands are
as scripts with keys and arguments, and what answers are as items; `indexes` keeps what items are found by
besides their key, and says why that is never too little; `orders` and `runs` are what write.lua is told,
`asks` what is sent. `talk` says what is sent for which command, and in what order, as generators, `servers`
to whom; `slots` knows the nodes of a cluster. `lines` are the connections, for threads and for event loops,
and `answers` reads what comes by them. `faults` translates errors. `bell` listens for what others write. The
`scripts` are in Lua, each in its file. `schema` stamps and checks a server. `store` puts them together.
"""

from semel.extras import require

require("redis", "redis")

from semel.stores.redis.schema import problems, provision  # noqa: E402 - it needs the driver
from semel.stores.redis.store import RedisStore  # noqa: E402 - it needs the driver

__all__ = ["RedisStore", "problems", "provision"]
