"""An HTTP client for remote systems, with retries, and with errors that say what is known.

A call that raises `RequestRefused` had no effect. One that raises `Unavailable` had none either, or may be
repeated: it has an idempotency key, or its method is idempotent. One that raises `AnswerLost` may have had an
effect, and repeating it may cause a second one.
"""

import functools
import math
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import quote

import httpx
import stamina

from semel.errors import SemelError

# With these the remote system says that it has not begun, and that a retry may succeed.
NOT_BEGUN: Final = frozenset({408, 425, 429})
# With these many systems answer a POST that they have carried out.
REDIRECTED: Final = frozenset({302, 303})
# From here on the remote system, or a proxy in front of it, failed: perhaps after it applied the request.
SERVER_ERROR: Final = 500
# Repeating one of these changes nothing that the first has not changed.
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
# After these the other side has nothing that it could act on.
NEVER_SENT: Final = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
    httpx.LocalProtocolError,
)


class RemoteError(SemelError):
    """Another system did not do as asked."""

    def __init__(
        self, system: str, problem: str, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(f"{system} {problem}")
        self.system = system
        self.status = status
        self.retry_after = retry_after
        """The seconds after which the remote system wants to be asked again; None if it named none."""


class RequestRefused(RemoteError):
    """It said no, and would say so again; nothing was done."""


class Unavailable(RemoteError):
    """It cannot be reached, is too busy or failed; nothing was done, or a retry does no harm."""


class AnswerLost(RemoteError):
    """The outcome is unknown: the request was sent, and no usable answer came back."""


class RemoteClient:
    """Another system, by its name and its address.

    A call is tried `attempts` times, with growing pauses in between; what the other side asks for by
    `Retry-After`, or as `retry_after` reads it, is waited for up to `patience` seconds, and beyond that left
    to the caller.
    """

    def __init__(
        self,
        name: str,
        base_url: str,
        *,
        headers: dict[str, str] | None = None,
        timeout: float = 10.0,
        attempts: int = 3,
        patience: float = 5.0,
        retry_after: Callable[[httpx.Response], float | None] | None = None,
    ) -> None:
        self.name = name
        self._patience = patience
        self._timeout = timeout
        self._retry_after = retry_after or retry_after_header
        self._client = httpx.Client(base_url=base_url, headers=headers, timeout=timeout)
        self._retrying = stamina.RetryingCaller(attempts=attempts, timeout=None, wait_max=patience).on(
            self._pause
        )

    def call(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        key: str | None = None,
        repeatable: bool | None = None,
        **more: Any,
    ) -> httpx.Response:
        """Send a request; by `key` the remote system recognises a retry.

        A request whose outcome is unknown is sent again only if it has a key or an idempotent method, unless
        `repeatable` says otherwise.
        """
        headers = more.pop("headers", {}) | ({} if key is None else {"Idempotency-Key": key})
        request = {"json": json, "headers": headers, **more}
        if repeatable is None:
            repeatable = key is not None or method in SAFE
        # Without arguments, which stamina would log: they are what the other side is told.
        return self._retrying(functools.partial(self._once, method, path, request, repeatable))

    def path(self, *segments: str) -> str:
        """A path of these segments, none of which leads out of it: what stands in one is percent-encoded."""
        for segment in segments:
            # Encoding leaves dots as they are, and clients and servers alike take these two out of a path.
            if segment in ("", ".", ".."):
                raise RequestRefused(
                    self.name, f"cannot be asked for {segment!r}, which names nothing in a path"
                )
        return "".join(f"/{quote(segment, safe='')}" for segment in segments)

    def _once(self, method: str, path: str, request: dict[str, Any], repeatable: bool) -> httpx.Response:
        try:
            response = self._answer(method, path, request)
        except NEVER_SENT as error:
            raise Unavailable(self.name, f"cannot be reached: {type(error).__name__}") from error
        except httpx.RequestError as error:
            # Also an answer that cannot be unpacked: that it came says nothing of what it says.
            raise self._lost(type(error).__name__, None, repeatable) from error
        if not response.is_success:
            raise self._error(response, repeatable)
        if "text/html" in response.headers.get("Content-Type", "").lower():
            # Somebody stands in between who means people: asks them to log in, or to come back later.
            raise self._lost("a web page answers", response.status_code, repeatable)
        return response

    def _answer(self, method: str, path: str, request: dict[str, Any]) -> httpx.Response:
        """The whole answer, within the time-out: httpx alone would wait so long for each piece of it."""
        until, pieces = time.monotonic() + self._timeout, []
        with self._client.stream(method, path, **request) as response:
            for piece in response.iter_raw():
                pieces.append(piece)
                if time.monotonic() > until:
                    raise httpx.ReadTimeout("its answer does not end", request=response.request)
        return httpx.Response(
            response.status_code,
            headers=response.headers,
            content=b"".join(pieces),
            request=response.request,
        )

    def _error(self, response: httpx.Response, repeatable: bool) -> RemoteError:
        status = response.status_code
        if status >= SERVER_ERROR or status in REDIRECTED:
            return self._lost(f"it answers {status}", status, repeatable, self._retry_after(response))
        if status in NOT_BEGUN:
            return Unavailable(self.name, f"answers {status}", status, self._retry_after(response))
        return RequestRefused(self.name, f"refuses: {status}", status)

    def _lost(self, how: str, status: int | None, repeatable: bool, wait: float | None = None) -> RemoteError:
        if repeatable:
            return Unavailable(self.name, f"did not confirm the request ({how})", status, wait)
        return AnswerLost(self.name, f"may have carried out the request ({how})", status, wait)

    def _pause(self, error: Exception) -> bool | float:
        """Whether a call that raised this is tried again here, and after how many seconds."""
        if not isinstance(error, Unavailable):
            return False
        if error.retry_after is None:
            return True
        return error.retry_after if error.retry_after <= self._patience else False

    def close(self) -> None:
        """Let go of its connections."""
        self._client.close()


def retry_after_header(response: httpx.Response) -> float | None:
    """After how many seconds an answer asks to be asked again, given in seconds or as a date."""
    value = response.headers.get("Retry-After", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        seconds = _until(value, response.headers.get("Date", ""))
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _until(date: str, sent: str) -> float:
    try:
        return (parsedate_to_datetime(date) - parsedate_to_datetime(sent)).total_seconds()
    except (TypeError, ValueError):  # no date, or one of them without a zone
        return math.nan
