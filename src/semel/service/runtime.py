"""The runtime: what is open while the service or `semel work` runs."""

import hmac
import secrets
import threading
from typing import Any

import msgspec

from semel import errors
from semel.apps.configuration import Configuration
from semel.apps.keyfile import secrets_of
from semel.apps.ledgers import binding, ledger_at
from semel.apps.registry import RegisteredApp, check_made
from semel.connect import Semel
from semel.core.keys import prefix
from semel.doors.http.problems import ProblemTypes
from semel.doors.inbox import open_inbox
from semel.redact import Redactor
from semel.service.applications import Applications
from semel.service.metrics import Looks, ServiceMetrics, in_doubt, in_inbox
from semel.service.settings import InboxSection, ServiceSettings, settings, tables_of_api, tables_of_app
from semel.tables import DOUBTS, JOURNAL, Table
from semel.telemetry import log_events


class MountedApp(msgspec.Struct, frozen=True):
    """An app that runs here."""

    name: str
    app: Any
    inbox: Any
    settings: InboxSection
    works: bool
    """It has messages to be worked on, and does not do everything at once."""
    s: Semel
    """Its ledger, and what stands on it."""
    problem_types: ProblemTypes
    """Those that only it answers with."""


class Runtime:
    """A store, the apps on it, and what they need."""

    def __init__(self, configuration: Configuration, only: tuple[str, ...] = ()) -> None:
        self.configuration = configuration
        self.settings: ServiceSettings = settings(configuration)
        self._applications = Applications(configuration, self.settings)
        self.metrics: ServiceMetrics = ServiceMetrics()
        self._secrets = secrets_of(self.settings.semel, configuration)
        self._redact = Redactor()
        self.stopping: threading.Event = threading.Event()
        """Set once the service was asked to stop."""
        self.link: str = secrets.token_urlsafe(24)
        """The token of the dashboard's sign-in link, where nobody else can sign in."""
        self._open: list[Semel] = []
        self.apps: list[MountedApp] = []
        try:
            self.s: Semel = self._connect("")
            self._open_apps(only)
            if self.settings.service.rates:
                self._keep_rates()
        except BaseException:
            self.close()
            raise

    def _connect(self, app: str) -> Semel:
        """The ledger of an app, or the store itself; a store that is open already is not opened again."""
        try:
            prefix(self.settings.semel.env, "")
        except errors.InvalidKey as error:
            raise self.configuration.wrong(("semel", "env"), str(error)) from error
        try:
            bound = binding(app, self.settings.semel, self._secrets, self.settings.apps.get(app, {}))
            if app and bound.url == self.settings.semel.url:
                return self.s.scoped(bound.scope)
            s = bound.open(redact=self._redact, log_keys=self.settings.service.log_keys)
        except errors.UsageError as error:
            if isinstance(error, errors.InvalidOption) and str(error).startswith("apps."):
                raise self._applications.placed(app, error) from error
            raise self.configuration.wrong(("semel", "url"), str(error)) from error
        self._open.append(s)
        s.events.listen(self.metrics.events)
        s.events.listen(log_events)
        return s

    def _open_apps(self, only: tuple[str, ...]) -> None:
        for name in self._applications.chosen(only):
            found = self._applications.find(name)
            try:
                self._add(self._mounted(found, self._applications.settings_of(found)))
            except errors.InvalidOption as error:
                raise self._applications.placed(name, error) from error

    def _keep_rates(self) -> None:
        """Count what happens in every store that has the table for it."""
        having = [s.store for s, tables in self.tables() if JOURNAL.name in {table.name for table in tables}]
        for s in self._open:
            if s.store in having:
                s.keep_rates()

    def _add(self, mounted: MountedApp) -> None:
        self.apps.append(mounted)
        check_made(mounted.name, mounted.app)
        for other in self.apps[:-1]:
            for path in mounted.app.hooks.keys() & other.app.hooks.keys():
                problem = f"{path} is an address of {other.name} already"
                raise errors.InvalidOption(f"apps.{mounted.name}: {problem}")

    def _mounted(self, found: RegisteredApp, chosen: msgspec.Struct) -> MountedApp:
        name = found.name
        if found.facts.needs_secret and self._secrets.secret is None:
            raise self.configuration.wrong(
                ("semel", "secret"),
                f"it is not set, and the app {name} needs it, to keep nothing personal in clear: give it 32 "
                "random characters, here or in semel.secret_file",
            )
        inbox_settings = self.settings.inbox.get(name, InboxSection())
        s = self._connect(name)
        inbox = self._inbox(s, name, inbox_settings)
        app = found.kind(s, inbox, chosen)
        return MountedApp(name, app, inbox, inbox_settings, found.works, s, found.facts.problem_types)

    def _inbox(self, s: Semel, name: str, chosen: InboxSection) -> Any:
        try:
            return open_inbox(
                s,
                name,
                queue=chosen.queue,
                dead_letters=chosen.dead_letters,
                shards=chosen.shards,
                shared=True,  # all keys of its ledger are the application's
            )
        except errors.UsageError as error:
            raise self.configuration.wrong(
                ("inbox", name, _wrong_setting(chosen, str(error))), str(error)
            ) from error

    @property
    def session_secret(self) -> bytes | None:
        """What sessions of the dashboard are signed with, the same in every process that has the secret."""
        secret = self._secrets.secret
        return None if secret is None else hmac.digest(secret, b"semel dashboard sessions", "sha256")

    def hooks(self) -> dict[str, Any]:
        """Every address that takes webhooks."""
        return {path: hook for mounted in self.apps for path, hook in mounted.app.hooks.items()}

    def stores(self) -> list[Semel]:
        """Every store that is open, once."""
        return list(self._open)

    def tables(self) -> list[tuple[Semel, tuple[Table, ...]]]:
        """Every table that is needed, with the store that has to have it."""
        names = [one.name for one in self.apps]
        found = [(self.s, tables_of_api(self.settings, names))]
        return found + [(one.s, tables_of_app(one.name, self.settings)) for one in self.apps]

    def looks(self) -> Looks:
        """What is counted whenever somebody asks for metrics."""
        inboxes = {one.name: one.inbox for one in self.apps if one.works}
        return {
            "waiting": {name: in_inbox(inbox, dead=False) for name, inbox in inboxes.items()},
            "dead": {name: in_inbox(inbox, dead=True) for name, inbox in inboxes.items()},
            "doubts": {scope: in_doubt(s) for scope, s in self._ledgers().items()},
        }

    def _ledgers(self) -> dict[str, Semel]:
        """The ledgers in the store itself, by their scopes; none that would have to be read as a whole."""
        if DOUBTS not in ledger_at(self.settings.semel.url).indexes:
            return {}
        tenants = [name if one.scope is None else one.scope for name, one in self.settings.tokens.items()]
        apps = [one.s for one in self.apps if one.s.store is self.s.store]
        return {s.scope: s for s in (self.s, *apps, *map(self.s.scoped, tenants))}

    def close(self) -> None:
        """Let go of everything."""
        for mounted in self.apps:
            mounted.app.close()
            mounted.inbox.close()
        for s in self._open:
            s.close()


def _wrong_setting(chosen: InboxSection, problem: str) -> str:
    """Which setting of an inbox does not work."""
    if chosen.queue and chosen.shards > 1:
        return "shards"
    return "dead_letters" if chosen.dead_letters and repr(chosen.dead_letters) in problem else "queue"
