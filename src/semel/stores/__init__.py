"""The stores, which execute commands: memory, SQLite, DynamoDB, PostgreSQL and Redis."""
