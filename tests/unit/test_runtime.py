"""What semel does not run in is refused by name: other async libraries, and subinterpreters."""

import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import semel


@pytest.fixture(params=["memory:", "sqlite", "postgres", "redis", "dynamodb"])
def s(request: pytest.FixtureRequest, tmp_path: Path) -> semel.Semel:
    urls = {
        "sqlite": f"sqlite:///{tmp_path / 'ledger.db'}",
        # Nothing is asked of these servers: the calls are refused before.
        "postgres": "postgresql://127.0.0.1:1/semel",
        "redis": "redis://127.0.0.1:1",
        "dynamodb": "dynamodb://eu-north-1?endpoint=http://127.0.0.1:1",
    }
    return semel.connect(urls.get(request.param, request.param))


RAN: list[int] = []


async def work(n: int) -> int:
    RAN.append(n)
    return n


async def block(s: semel.Semel) -> None:
    async with s.once.running("k"):
        RAN.append(1)


async def transaction(s: semel.Semel) -> None:
    async with s.aio.transaction() as tx:
        tx.journal.append("o", {"a": 1})


CALLS: dict[str, Callable[[semel.Semel], Awaitable[Any]]] = {
    "once": lambda s: s.once("k:{n}")(work)(1),
    "block": block,
    "ledger": lambda s: s.aio.ledger.claim("k"),
    "documents": lambda s: s.aio.documents.get("d"),
    "mailbox": lambda s: s.aio.mailbox("jobs").survey(),
    "transaction": transaction,
    "close": lambda s: s.aio.close(),
}


def step(coroutine: Awaitable[Any]) -> None:
    """Begin a coroutine as an event loop that is not asyncio's would."""
    assert isinstance(coroutine, Coroutine)
    try:
        coroutine.send(None)
    finally:
        coroutine.close()


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_trio_is_refused_by_name_before_anything_is_claimed(
    s: semel.Semel, call: Callable[[semel.Semel], Awaitable[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    RAN.clear()
    with monkeypatch.context() as patch:
        trio = SimpleNamespace(current_async_library=lambda: "trio")  # which sniffio tells while trio runs
        patch.setitem(sys.modules, "sniffio", trio)
        with pytest.raises(semel.UsageError, match=r"under trio.*trio\.to_thread\.run_sync"):
            step(call(s))
    with pytest.raises(semel.UsageError, match="no event loop of asyncio"):
        step(call(s))
    assert RAN == []


ISOLATED = """
    import sys
    sys.path[:] = {path!r}
    import semel
    from semel.stores.memory import MemoryStore
    for make in (lambda: semel.connect({url!r}), lambda: semel.Semel(MemoryStore())):
        try:
            make()
        except semel.UsageError as error:
            assert "subinterpreter" in str(error), error
            print("refused")
"""


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="msgspec is refused there by Python itself")
@pytest.mark.parametrize("isolated", [True, False])
@pytest.mark.parametrize("url", ["memory:", "sqlite:///ledger.db", "postgresql://127.0.0.1:1/semel"])
def test_a_subinterpreter_is_refused_by_name(isolated: bool, url: str, tmp_path: Path) -> None:
    inner = textwrap.dedent(ISOLATED.format(path=sys.path, url=url))
    outer = f"import _xxsubinterpreters as i; i.run_string(i.create(isolated={isolated}), {inner!r})"
    ran = subprocess.run(
        [sys.executable, "-c", outer], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (ran.returncode, ran.stdout.split()) == (0, ["refused", "refused"]), ran.stderr
    assert not (tmp_path / "ledger.db").exists()
