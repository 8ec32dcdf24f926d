"""The store in one SQLite file: durable, for every process of one machine, with nothing to install.

`plan` is pure: tables as SQL, items as rows. `interpreter` carries commands out inside a transaction.
`groupcommit` lets writes share transactions, and `lock` lets processes follow each other; `within` carries
writes out in a transaction of the caller's. `pool` has the connections that only read. `address` reads the
URL and connects, `schema` makes and migrates the tables, `errors` translates those of SQLite, `time` has
the file's clock. `store` puts them together.
"""

from semel.stores.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
