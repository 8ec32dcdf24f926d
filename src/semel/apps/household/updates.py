"""Telegram's updates: which of them somebody said something in.

https://core.telegram.org/bots/api#update: a new message and an edited one are two updates, each with an id.
"""

from typing import Any

import msgspec

from semel.apps.payloads import mended


class TextMessage(msgspec.Struct, frozen=True):
    """Somebody wrote a text in a chat."""

    chat: int
    message: int
    user: int
    at: int
    text: str
    edited: bool = False


class _Person(msgspec.Struct):
    id: int
    is_bot: bool = False


class _Chat(msgspec.Struct):
    id: int


class _Text(msgspec.Struct):
    message_id: int
    date: int
    chat: _Chat
    sender: _Person | None = msgspec.field(default=None, name="from")
    text: str = ""


class _Update(msgspec.Struct):
    message: _Text | None = None
    edited_message: _Text | None = None


def text_message(update: Any) -> TextMessage | None:
    """What was said by it; None for what is no text, or what a bot wrote."""
    read = msgspec.convert(update, _Update)
    text = read.message or read.edited_message
    if text is None or not text.text or text.sender is None or text.sender.is_bot:
        return None
    words, edited = mended(text.text), read.message is None
    return TextMessage(text.chat.id, text.message_id, text.sender.id, text.date, words, edited)
