"""The store in DynamoDB: for any number of machines, with nothing to run.

`values` and `layout` are how items look there, `conditions`, `queries` and `plan` make requests of commands,
`steps` decides which are sent and what follows from their answers: all of that is pure. `time` says what is
known of the server's clock, `habits` when reading first is cheaper, `faults` what errors mean, `url` what a
URL means. `store` carries the steps out, for threads and for tasks.
"""

from semel.stores.dynamodb.store import DynamoDBStore

__all__ = ["DynamoDBStore"]
