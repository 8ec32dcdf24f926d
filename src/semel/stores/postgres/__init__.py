"""The store in a PostgreSQL database: for every machine that reaches it, also inside a caller's transaction.

`values`, `conditions`, `forms`, `readings`, `writings` and `plan` are pure: commands as SQL, rows as items.
`clerk` has what is said to the server to carry a command out, and does no I/O either; `guest` has what is
said otherwise in a transaction of the caller's, and `refusers` where to look before a try. `pool` has the
connections, and carries that talk out, `limits` ends what is waited for too long, and `phrases` is its short
way for what is said often, or together. `within` does so on a connection of the caller's. `housekeeper` hears
of writes and removes what has expired. `layout` and `schema` make and check the tables. `address` reads the
URL, `errors` translates those of the driver. `store` puts them together.
"""

from semel.extras import require

require("psycopg", "postgres")

from semel.stores.postgres.schema import ddl, migrate, problems  # noqa: E402 - only now it is known to be there
from semel.stores.postgres.store import PostgresStore  # noqa: E402

__all__ = ["PostgresStore", "ddl", "migrate", "problems"]
