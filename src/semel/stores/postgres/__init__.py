"""The store in a PostgreSQL database, for every machine that reaches it, and in a caller's transaction.

`queries.sql` has all the SQL. `statements` makes statements of commands, and items of rows. `interpreter`
says in which round trips a command is executed. `session` executes statements on a connection; `pool` has the
sessions, and makes the round trips. `background` has the threads that listen for notifications and remove
expired items. `schema` makes and checks the tables. `address` reads the URL, and translates the driver's
errors. `store` puts them together.
"""

from semel.core.runtime import require

require("psycopg", "postgres")

from semel.stores.postgres.schema import ddl, migrate, problems  # noqa: E402 - psycopg is there only now
from semel.stores.postgres.store import PostgresStore  # noqa: E402

__all__ = ["PostgresStore", "ddl", "migrate", "problems"]
