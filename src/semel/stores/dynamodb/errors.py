"""What DynamoDB's errors mean, and what to do about them."""

import re
from collections.abc import Iterable

from semel import errors
from semel.aws.errors import DENIED, ServiceError
from semel.stores.dynamodb.layout import title as titled
from semel.stores.dynamodb.plan import too_large
from semel.tables import OWN, Table

ACTION = re.compile(r"dynamodb:\w+")
KEYS = re.compile(
    r"key element|missing the key|number of (conditions on the keys|key)|type mismatch for (index )?key",
    re.IGNORECASE,
)
NO_INDEX = re.compile(r"does not have the specified index", re.IGNORECASE)
# An index of a large table takes hours to be filled.
FILLING = re.compile(r"backfilling", re.IGNORECASE)
TOO_LARGE = re.compile(
    r"(item size|size of the item|collection size).*(exceed|maximum)|exceeded.*item size", re.IGNORECASE
)


class ErrorTranslator:
    """Where errors happened, as messages tell it."""

    def __init__(self, url: str, env: str) -> None:
        self._url, self._env = url, env

    @property
    def _command(self) -> str:
        from shlex import quote  # where something is wrong, and not at every start

        return f"semel provision --url {quote(self._url)} --env {quote(self._env)}"

    def translated(
        self, error: ServiceError, operation: str, title: str, tables: Iterable[Table] = ()
    ) -> errors.SemelError:
        """The error as everybody else knows it."""
        code, message = error.code, error.message
        if code == "ResourceNotFoundException":
            return errors.TableMissing(f"there is no table {title} (yet); {self._finding(title, tables)}")
        if code in DENIED:
            return self._denied(error, operation, title)
        if code == "ItemCollectionSizeLimitExceededException" or TOO_LARGE.search(message):
            return too_large(f"an item of {title}")
        if code == "ValidationException" and NO_INDEX.search(message):
            return errors.WrongSchema(f"{title}: {message}; run: {self.provision(tables)}")
        if code == "ValidationException" and FILLING.search(message):
            return errors.StoreUnavailable(f"{title}: {message}; it can be read once it is ACTIVE")
        if code == "ValidationException" and KEYS.search(message):
            return errors.WrongSchema(
                f"{title} has another key than it should have ({message}); compare it with what this prints: "
                f"{self._command} --print cloudformation"
            )
        if code in ("ValidationException", "SerializationException"):
            return errors.UsageError(f"DynamoDB refuses this {operation} on {title}: {message}")
        return error

    def _finding(self, title: str, tables: Iterable[Table]) -> str:
        """What to do about a table that is missing: who has it under another name does not want a new one."""
        listed = tuple(tables)
        named = [table.titled_by for table in listed if table.titled_by and titled(table, self._env) == title]
        other = f"name one that you have with {' or '.join(named)}, or " if named else ""
        every = "(or, for every table that a service needs, semel provision beside its semel.toml)"
        return f"{other}run: {self.provision(listed)} {every}"

    def provision(self, tables: Iterable[Table]) -> str:
        """The command that makes these tables; semel's own it makes unasked."""
        own = {table.name for table in OWN}
        named = dict.fromkeys(table.name for table in tables if table.name not in own)
        return self._command + "".join(f" --table {name}" for name in named)

    def _denied(self, error: ServiceError, operation: str, title: str) -> errors.NotPermitted:
        named = ACTION.search(error.message)
        action = named[0] if named else f"dynamodb:{operation}"
        return errors.NotPermitted(
            f"these credentials may not do {action} on {title} ({error.code}: {error.message}); "
            f"allow it as this prints it: {self._command} --print iam"
        )
