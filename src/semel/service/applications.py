"""The applications that the settings name: which run, what they are, and what is set for them."""

from typing import Any

import msgspec

from semel import errors
from semel.apps.configuration import Configuration, read
from semel.apps.importing import look_beside
from semel.apps.registry import APPS, RESERVED, RegisteredApp, find, known
from semel.apps.sections import BadSetting
from semel.apps.settings import wrong
from semel.service.settings import ServiceSettings, enabled


class Applications:
    """What `[apps.NAME]` and `[inbox.NAME]` name; modules beside the settings' file are found too."""

    def __init__(self, configuration: Configuration, settings: ServiceSettings) -> None:
        self._configuration, self._settings, self._sections = configuration, settings, settings.apps
        look_beside(configuration.folder)
        for name in settings.inbox:
            if not self._is_known(name):
                raise configuration.wrong(("inbox", name), self._no_such_app())

    def chosen(self, only: tuple[str, ...] = ()) -> list[str]:
        """The names of those that are to run: these, or all that are enabled."""
        for name in only:
            if not self._is_known(name):
                raise errors.InvalidOption(f"--app {name}: {self._no_such_app()}")
        return list(only) or enabled(self._settings, self._configuration)

    def find(self, name: str) -> RegisteredApp:
        """The application of a name, whether it is to run or not."""
        try:
            return find(name, self._at(name))
        except errors.InvalidOption as error:
            raise self.placed(name, error) from error

    def settings_of(self, found: RegisteredApp) -> msgspec.Struct:
        """Its settings, as it reads them."""
        values = {name: value for name, value in self._section(found.name).items() if name not in RESERVED}
        kind: type[msgspec.Struct] = found.kind.settings_type
        return read(kind, values, ("apps", found.name), self._configuration)

    def placed(self, name: str, error: errors.InvalidOption) -> errors.InvalidOption:
        """An app's word about one of its settings, or about all of them, with the place where it was set."""
        if isinstance(error, BadSetting):
            return error
        setting, colon, problem = str(error).partition(": ")
        if not colon or not setting.startswith("apps."):
            return self._configuration.wrong(("apps", name), str(error))
        return self._configuration.wrong(tuple(setting.split(".")), problem)

    def _section(self, name: str) -> dict[str, Any]:
        return self._sections.get(name, {})

    def _at(self, name: str) -> str:
        at = self._section(name).get("at", "")
        if not isinstance(at, str):
            raise wrong(name, "at", f"Expected `str`, got `{type(at).__name__}`")
        return at

    def _is_known(self, name: str) -> bool:
        return name in APPS or name in self._sections or name in known()

    def _no_such_app(self) -> str:
        return f"there is no such app; there are {', '.join(known(*self._sections))}"
