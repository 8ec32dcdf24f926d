"""The reference of the doors names each of them with the parameters that it has."""

import inspect
from collections.abc import Callable
from importlib import import_module

import pytest

from tests.unit.test_docs import code, text_of

DOORS = {
    "http": ["Idempotency"],
    "asgi": ["IdempotencyMiddleware"],
    "wsgi": ["IdempotencyMiddleware"],
    "fastapi": ["idempotent_route", "publish"],
    "flask": ["idempotent", "publish"],
    "litestar": ["idempotent", "IdempotencyPlugin"],
    "django": ["idempotent", "middleware", "pages", "user_of"],
    "webhooks": ["Receiver", "Ingress", "Provider", "Notice"],
    "inbox": ["open_inbox"],
    "aws_lambda": ["Lambda", "from_environment"],
    "sqs": ["Consumer", "Queue"],
    "amqp1": ["Consumer", "Producer"],
    "rabbitmq": ["Consumer"],
    "aio_pika": ["callback"],
    "pubsub": ["Consumer", "PushReceiver", "PushToken", "GoogleCerts"],
    "kafka": ["Consumer", "handler", "DeadLetterTopic"],
    "queues": ["Handler", "DeliveryResult"],
    "celery": ["once"],
    "dramatiq": ["once"],
    "taskiq": ["once"],
    "mcp": ["explained", "tool"],
    "http.publish": ["describe"],
}
# Named in their own section, and so without the module before them.
BARE = ("http", "webhooks", "inbox", "aws_lambda")


def written(thing: Callable[..., object]) -> str:
    """A signature without its defaults, which the page tells in words."""
    parameters: list[str] = []
    for one in inspect.signature(thing).parameters.values():
        if one.kind is one.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")
        parameters.append(f"**{one.name}" if one.kind is one.VAR_KEYWORD else one.name)
    return f"({', '.join(parameters)})"


@pytest.mark.parametrize(("door", "name"), [(door, name) for door, names in DOORS.items() for name in names])
def test_every_door_is_in_the_reference_with_its_parameters(door: str, name: str) -> None:
    thing = getattr(import_module(f"semel.doors.{door}"), name)
    before = "" if door in BARE or name == "DeliveryResult" else f"semel.doors.{door}."
    assert f"{before}{name}{written(thing)}" in code(text_of("reference/doors.md"))
