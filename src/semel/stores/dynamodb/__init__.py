"""The store in DynamoDB: for any number of machines, with nothing to run.

`items` is how items look there, `requests` what is sent for each command, and `steps` what a command sends
and what follows from it. `store` runs the steps, for threads and for tasks. `address` is what a URL means,
and `service` what time it is there, what errors mean and what requests cost.
"""

from semel.stores.dynamodb.store import DynamoDBStore

__all__ = ["DynamoDBStore"]
