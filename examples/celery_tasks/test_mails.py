"""The task as Celery runs it, in this process."""

import mails
import pytest


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was sent, by the key that the provider sees."""
    sent: list[str] = []
    monkeypatch.setattr(mails, "send", lambda _to, _text, key: sent.append(key))
    return sent


def test_a_task_that_is_sent_twice_mails_once(sent: list[str]) -> None:
    results = [mails.confirm.apply(["o-1", "ann@example.com"]).get() for _ in range(2)]
    assert results == ["confirmed o-1", "confirmed o-1"]
    assert len(sent) == 1


def test_a_failure_is_retried_under_the_same_key(sent: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def down_once(_to: str, _text: str, key: str) -> None:
        sent.append(key)
        if len(sent) == 1:
            raise mails.MailDown

    monkeypatch.setattr(mails, "send", down_once)
    assert mails.confirm.apply(["o-2", "ann@example.com"]).get() == "confirmed o-2"
    assert len(sent) == 2
    assert len(set(sent)) == 1
