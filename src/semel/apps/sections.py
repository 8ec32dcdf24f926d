"""The section of settings that the service, the functions on Lambda and the commands share."""

import msgspec

from semel import errors
from semel.core.runtime import Concealed


class EncryptionSection(Concealed, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys that results and messages are encrypted with, in base64: the active one encrypts."""

    active: str = ""
    keys: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<settings of encryption, with {len(self.keys)} keys>"


class StoreSection(Concealed, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where everything is kept, and what keeps it from being read."""

    url: str = "sqlite:///semel.db"
    env: str = "dev"
    """The environment of all keys: dev and prod never meet."""
    secret: str = ""
    """For the hashes of fingerprints and persons, and for encryption; beside an SQLite file one is made."""
    secret_file: str = ""
    """Instead of the secret, a file that contains it."""
    encrypt: bool = True
    """Encrypt with a key made from the secret, where there is one and no keys are given."""
    encryption: EncryptionSection = EncryptionSection()

    def __repr__(self) -> str:  # it has secrets in it
        return f"<settings of the store, env {self.env!r}>"


class BadSetting(errors.InvalidOption):
    """A setting that cannot work; the message names it and where it was set."""

    def __init__(self, setting: str, where: str, problem: str) -> None:
        super().__init__(f"{setting}{where}: {problem}")
        self.setting = setting
