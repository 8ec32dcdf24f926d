"""The service: one process that takes webhooks, works on what they bring, and lends the ledger over HTTP.

    semel serve --config semel.toml

`settings` says what can be set, `house` opens what was asked for, and `run` keeps it running.
"""
