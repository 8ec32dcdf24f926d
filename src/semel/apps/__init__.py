"""Whole applications on semel: facts from webhooks, a support desk, a household's chat, a probe; and yours.

Each is a class that takes a ledger, an inbox and its settings. It says which requests it answers (`hooks`),
and what a worker does with a message (`handle`); the service mounts it, and so do Lambda functions.
`application` says what such a class has, and `registry` where it is found.
"""

from semel.apps.application import Application, ApplicationClass, Deploys, Handles, Hook, Presents, Shows

__all__ = ["Application", "ApplicationClass", "Deploys", "Handles", "Hook", "Presents", "Shows"]
