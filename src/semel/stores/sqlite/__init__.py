"""The store in one SQLite file: durable, for every process of one machine, with nothing to install.

`plan` is pure: tables as SQL, items as rows. `clerk` carries commands out inside a transaction. `writer`
lets writes share transactions, and `turns` lets processes follow each other; `within` carries writes out in a
transaction of the caller's. `readers` are the connections that only read. `file` opens and migrates the file
and translates its errors, `time` tells its time. `store` puts them together.
"""

from semel.stores.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
