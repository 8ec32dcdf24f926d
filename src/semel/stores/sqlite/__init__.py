"""The store in one SQLite file: durable, for every process of one machine, with nothing to install.

`store` is where a command comes in. `statements` turns it into one of the statements in `queries.sql`, and
`commands` executes that, in a transaction of the store's or of the caller's. `writer` is the connection that
writes, with the queue before it; `file` has the URL, the readers, the errors, the schema, and the time.
"""

from semel.stores.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
