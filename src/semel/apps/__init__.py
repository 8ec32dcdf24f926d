"""Whole applications on semel: facts from webhooks, a support desk, a household's chat, a message probe.

Each is a class that takes a ledger, an inbox and its settings. It says which requests it answers (`hooks`),
and what a worker does with a message (`handle`); the service mounts it, and so do Lambda functions.
"""
