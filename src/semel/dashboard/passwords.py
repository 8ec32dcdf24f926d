"""Passwords of users: kept as scrypt hashes, compared in constant time, and tried only so often."""

import hashlib
import hmac
import re
import secrets
from base64 import b64decode, b64encode
from collections import OrderedDict
from typing import Final

from semel.core.clock import Clock
from semel.core.runtime import Concealed
from semel.errors import InvalidOption

# 16 MB and about 50 ms for each try: little for who signs in, and much for who guesses.
COST, BLOCK_SIZE, PARALLEL = 2**14, 8, 1
HASH_BYTES: Final = 32
SALT_BYTES: Final = 16
# Whoever sets the cost of a hash decides what a try costs this process.
MOST_MEMORY: Final = 256 * 1024 * 1024
FORM: Final = re.compile(
    r"scrypt:(\d{1,7}):(\d{1,2}):(\d{1,2}):([A-Za-z0-9+/=]{16,88}):([A-Za-z0-9+/=]{24,88})"
)
SHORTEST_PASSWORD: Final = 12
LONGEST_PASSWORD: Final = 1024

# So many tries are wrong before the next ones have to wait, and so long each of them waits.
FREE_TRIES: Final = 5
PAUSE_SECONDS: Final = 10.0
MOST_REMEMBERED: Final = 10_000


class PasswordHash(Concealed):
    """A password as it is kept: `scrypt:cost:block size:parallel:salt:hash`."""

    def __init__(self, text: str) -> None:
        found = FORM.fullmatch(text)
        if found is None:
            raise InvalidOption("a password is given as its hash, which `semel hash-password` prints")
        self._cost, self._block, self._parallel = int(found[1]), int(found[2]), int(found[3])
        self._salt, self._hash = b64decode(found[4]), b64decode(found[5])
        self.matches("")  # a cost that cannot be is refused now, and not at the first try

    def matches(self, password: str) -> bool:
        """Whether this is the password; it takes as long when it is not."""
        try:
            made = hashlib.scrypt(
                password.encode("utf-8", "replace")[:LONGEST_PASSWORD],
                salt=self._salt,
                n=self._cost,
                r=self._block,
                p=self._parallel,
                maxmem=MOST_MEMORY,
                dklen=len(self._hash),
            )
        except ValueError as error:
            raise InvalidOption(f"the hash of a password has a cost that cannot be: {error}") from error
        return hmac.compare_digest(made, self._hash)


def hash_password(password: str) -> str:
    """A password as settings keep it."""
    if len(password) < SHORTEST_PASSWORD:
        raise InvalidOption(f"a password has at least {SHORTEST_PASSWORD} characters: it could be guessed")
    salt = secrets.token_bytes(SALT_BYTES)
    made = hashlib.scrypt(
        password.encode()[:LONGEST_PASSWORD], salt=salt, n=COST, r=BLOCK_SIZE, p=PARALLEL, dklen=HASH_BYTES
    )
    parts = (COST, BLOCK_SIZE, PARALLEL, b64encode(salt).decode(), b64encode(made).decode())
    return ":".join(["scrypt", *map(str, parts)])


class PasswordThrottle:
    """Counts passwords by the address that sends them and the user they are for.

    Guesses from one address never delay the user at another address, and tokens are not counted.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tries: OrderedDict[bytes, tuple[int, float]] = OrderedDict()

    def attempt(self, address: str, name: str) -> float:
        """Count a password before it is checked; return for how many seconds it must not be checked yet."""
        key, now = _digest(address, name), self._clock.monotonic()
        number, last = self._tries.get(key, (0, 0.0))
        if number >= FREE_TRIES and last + PAUSE_SECONDS > now:
            return last + PAUSE_SECONDS - now
        self._tries[key] = number + 1, now
        self._tries.move_to_end(key)
        if len(self._tries) > MOST_REMEMBERED:
            self._tries.popitem(last=False)
        return 0.0

    def succeed(self, address: str, name: str) -> None:
        """Forget the wrong passwords before a right one."""
        self._tries.pop(_digest(address, name), None)


def _digest(address: str, name: str) -> bytes:
    """A key of fixed size: a name may be as long as a form."""
    return hashlib.blake2b(f"{address}\0{name}".encode("utf-8", "replace"), digest_size=16).digest()
