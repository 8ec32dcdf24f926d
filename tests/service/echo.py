"""An app of the tests: what is delivered is written to a file, each once."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from semel.connect import Semel
from semel.core.policy import Options
from semel.doors.inbox import Inbox, Message
from semel.doors.webhooks import WebhookResponse
from semel.errors import InvalidOption
from semel.ops.blocks import AppPage, FactsBlock, FieldBlock, KeyLink, PageBlock, TableBlock, TextBlock
from tests.servers.running import until


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `apps.echo`."""

    folder: str = "."
    path: str = "/webhooks/echo"
    words: list[str] = []
    limit: int = 3
    crash: bool = False


class Hook:
    """Takes a list of names; `!` is an error of the app's own."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self.seen: list[dict[str, Any]] = []

    def receive(self, headers: Any, body: bytes, *, method: str = "POST", url: str = "") -> WebhookResponse:
        raise NotImplementedError("it is asked by functions on Lambda alone")

    async def areceive(
        self, headers: Any, body: bytes, *, method: str = "POST", url: str = ""
    ) -> WebhookResponse:
        self.seen.append({"headers": headers, "method": method, "url": url})
        names = json.loads(body)
        if "!" in names:
            raise RuntimeError("planted-in-an-exception@example.com")
        await self._inbox.aput(*[Message(f"echo:{name}", {"name": name}) for name in names])
        return WebhookResponse(
            200, {"Content-Type": "application/json"}, json.dumps({"accepted": len(names)}).encode()
        )


class Echo:
    """The app."""

    settings_type = Settings
    worker_options: ClassVar[Options] = {"max_attempts": 2}

    def __init__(self, s: Semel, inbox: Inbox, settings: Settings) -> None:
        if settings.limit > 9:
            raise InvalidOption("apps.echo.limit: it is at most 9")
        self.s, self.inbox, self.settings = s, inbox, settings
        self._folder = Path(settings.folder)
        self.hooks = {settings.path: Hook(inbox)}
        self.closed = False

    def handle(self, message: Message) -> str:
        name: str = message.body["name"]
        self._note(f"begun {name}")
        if name.startswith("slow"):
            assert until((self._folder / "go").exists)
        if name.startswith("bad"):
            raise ValueError("it is bad")
        if name.startswith("torn") and not (self._folder / "mended").exists():
            raise LookupError("a piece is missing")
        self._note(f"done {name}")
        return name

    def pages(self) -> dict[str, AppPage]:
        return {"names": AppPage("Names", self._names)}

    async def _names(self, query: Mapping[str, str]) -> list[PageBlock]:
        name = query.get("name", "seen-1")
        rows = ((KeyLink(f"echo:{name}"), len(name)),)
        return [
            TextBlock("What was delivered."),
            FieldBlock("name", "Name", "seen-1"),
            FactsBlock({"Folder": self._folder.name, "Words": len(self.settings.words)}),
            TableBlock("Its key", ("Key", "Length"), rows),
        ]

    def _note(self, line: str) -> None:
        with (self._folder / "effects").open("a") as file:
            file.write(f"{line}\n")

    def close(self) -> None:
        self.closed = True
