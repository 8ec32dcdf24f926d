"""The store in a PostgreSQL database: for every machine that reaches it, also inside a caller's transaction.

Pure are `values`, `conditions`, `statements`, `reads` and `writes`, which make SQL, `plan`, which makes
statements of the commands on one table and items of its rows, and `interpreter`, which says in what round
trips a command is carried out. `pool` has the sessions and makes the round trips; `connection` limits how
long an answer is waited for, and `prepared` executes prepared statements below the driver's cursor.
`within` is the store on a connection of the caller's. `background` is the thread that listens for
notifications and reaps what has expired. `layout` and `schema` make and check the tables. `address` reads the
URL, `errors` translates those of the driver. `store` puts them together.
"""

from semel.core.runtime import require

require("psycopg", "postgres")

from semel.stores.postgres.schema import ddl, migrate, problems  # noqa: E402 - only now it is known to be there
from semel.stores.postgres.store import PostgresStore  # noqa: E402

__all__ = ["PostgresStore", "ddl", "migrate", "problems"]
