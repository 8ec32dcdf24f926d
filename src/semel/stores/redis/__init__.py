"""The store in Redis or Valkey, for every process and machine that can reach it.

`address` reads the URL. The pure half: `keys` says what the keys of Redis are called, `plan` what a table's
commands are as scripts with keys and arguments, and what replies are as items; `indexes` keeps what items are
found by besides their key, and says why that is never too little. `scripts` are in Lua, each in its file,
with their arguments and replies; `writes` makes the calls of the one that writes. `interpreter` says what is
sent for which command, and in what order, as generators; `scan` fills pages; `cluster` finds the server that
has a key, and `protocol` turns commands into bytes, and bytes into replies. The I/O: `connection` is one
connection, and alone touches redis-py's private names; `pool` keeps those of threads and of event loops;
`listener` is notified of what others write. `errors` translates those of the driver. `schema` stamps and
checks a server. `store` puts them together.
"""

from semel.core.runtime import require

require("redis", "redis")

from semel.stores.redis.schema import problems, provision  # noqa: E402 - it needs the driver
from semel.stores.redis.store import RedisStore  # noqa: E402 - it needs the driver

__all__ = ["RedisStore", "problems", "provision"]
