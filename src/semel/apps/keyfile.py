"""The secret and the encryption key: as set, or from a key file that is made beside an SQLite database."""

import logging
import os
import secrets
from base64 import b64decode
from binascii import Error as NotBase64
from pathlib import Path
from typing import Final

import msgspec

from semel import errors
from semel.apps.configuration import Configuration
from semel.apps.sections import StoreSection
from semel.apps.settings import SHORTEST
from semel.core.codecs import Encryption
from semel.core.runtime import Concealed

logger: Final = logging.getLogger("semel.service")


class StoreSecrets(Concealed, msgspec.Struct, frozen=True):
    """What `connect` is given."""

    secret: bytes | None = None
    encryption: Encryption | None = None

    def __repr__(self) -> str:
        return f"<secrets, {'with' if self.encryption else 'without'} encryption>"


def secrets_of(store: StoreSection, configuration: Configuration, *, looking: bool = False) -> StoreSecrets:
    """The secret and the keys that were set; with SQLite there are always some.

    Who is only `looking` makes no key, and takes a secret for what it is.
    """
    secret = _secret(store, configuration, looking)
    if store.encryption.keys:
        return StoreSecrets(secret, _chosen_keys(store, configuration))
    if store.encryption.active:
        problem = "it names a key, and semel.encryption.keys has none"
        raise configuration.wrong(("semel", "encryption", "active"), problem)
    if secret is None or not store.encrypt:
        return StoreSecrets(secret)
    return StoreSecrets(secret, Encryption.from_secret(secret))


def _secret(store: StoreSection, configuration: Configuration, looking: bool) -> bytes | None:
    if store.secret and store.secret_file:
        raise configuration.wrong(
            ("semel", "secret"), "it is set, and semel.secret_file is too: keep one of them"
        )
    if store.secret:
        # An environment variable may be any bytes.
        secret = store.secret.encode("utf-8", "surrogateescape")
        return secret if looking else _long_enough(secret, "it", ("semel", "secret"), configuration)
    if store.secret_file:
        return _from_file(Path(store.secret_file), ("semel", "secret_file"), configuration)
    return _own(store.url, configuration, looking) if store.url.startswith("sqlite:") else None


def _from_file(path: Path, setting: tuple[str, ...], configuration: Configuration) -> bytes:
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise configuration.wrong(setting, f"{path} cannot be read: {error.strerror}") from error
    return _long_enough(secret, str(path), setting, configuration)


def _long_enough(secret: bytes, what: str, setting: tuple[str, ...], configuration: Configuration) -> bytes:
    if len(secret) < SHORTEST:
        problem = f"{what} can be guessed: use 32 random characters, and {SHORTEST} at least"
        raise configuration.wrong(setting, problem)
    return secret


def _own(url: str, configuration: Configuration, looking: bool) -> bytes | None:
    """The secret in the file beside the database, which is made if there is none, and never written over."""
    from semel.stores.sqlite.file import SQLiteFile

    try:
        file = SQLiteFile.from_url(url)
    except errors.UsageError as error:
        raise configuration.wrong(("semel", "url"), str(error)) from error
    file.check()
    path = Path(f"{file.path}.key")
    if not path.exists():
        if looking:
            return None
        _make(path)
    if path.stat().st_mode & 0o077:
        logger.warning("%s can be read by others: chmod 600 it", path)
    # As it stands, so that `semel act erase` can be given the same secret.
    return _from_file(path, ("semel", "secret"), configuration)


def _make(path: Path) -> None:
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as text:
        text.write(f"{secrets.token_hex(32)}\n")
        text.flush()
        os.fsync(text.fileno())
    try:
        # Only one of several processes that start at once gets to name its own.
        path.hardlink_to(draft)
    except FileExistsError:
        return
    finally:
        draft.unlink()
    logger.warning(
        "no secret is set, so one was made: %s. What is personal in the database can be read with it only: "
        "back it up, in another place than the database",
        path,
    )


def _chosen_keys(store: StoreSection, configuration: Configuration) -> Encryption:
    chosen, keys = store.encryption, {}
    for name, text in chosen.keys.items():
        try:
            keys[name] = b64decode(text, validate=True)
        except NotBase64 as error:
            raise configuration.wrong(("semel", "encryption", "keys"), f"{name} is no base64") from error
    active = chosen.active or min(keys)
    try:
        return Encryption(keys, active)
    except ValueError as error:
        raise configuration.wrong(("semel", "encryption", "keys"), str(error)) from error
