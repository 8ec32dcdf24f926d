"""The store in DynamoDB: for any number of machines, with nothing to run.

`values` and `layout` are how items look there; `conditions`, `queries` and `plan` make requests of
commands; `interpreter` decides which are sent and what follows from the responses: all of that is pure.
`time` says what is known of the server's clock, `read_first` when reading before a write is cheaper,
`errors` what its errors mean, `address` what a URL means, `prices` what requests cost. `store` carries the
operations out, for threads and for tasks.
"""

from semel.stores.dynamodb.store import DynamoDBStore

__all__ = ["DynamoDBStore"]
