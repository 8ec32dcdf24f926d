"""A door whose package is not there says which extra brings it."""

import json
import subprocess
import sys

import pytest

import semel

# What one writes first at a door, the package that is not there, and the extra that brings it.
DOORS = {
    "celery": ("import semel.doors.celery", "celery", "celery"),
    "django": ("import semel.doors.django", "django", "django"),
    "drf": ("import semel.doors.drf", "django", "django"),
    "dramatiq": ("import semel.doors.dramatiq", "dramatiq", "dramatiq"),
    "fastapi": ("import semel.doors.fastapi", "fastapi", "fastapi"),
    "flask": ("import semel.doors.flask", "flask", "flask"),
    "aio_pika": ("import semel.doors.aio_pika", "aio_pika", "aiopika"),
    "rabbitmq": ("import semel.doors.rabbitmq", "pika", "rabbitmq"),
    "litestar": ("import semel.doors.litestar", "litestar", "litestar"),
    "aws_lambda durable": (
        "from semel.doors.aws_lambda import *; Lambda(s).durable(lease=60)(lambda event, context: None)",
        "aws_durable_execution_sdk_python.exceptions",
        "durable",
    ),
    "mcp": ("import semel.doors.mcp", "mcp", "mcp"),
    "taskiq": ("import semel.doors.taskiq", "taskiq", "taskiq"),
    # These two are imported for their handlers too, which serve any client.
    "amqp1 consumer": (
        "from semel.doors.amqp1 import *; Consumer(s, 'amqp://host', 'q', print)",
        "proton",
        "amqp",
    ),
    "amqp1 producer": ("from semel.doors.amqp1 import *; Producer('amqp://host')", "proton", "amqp"),
    "pubsub consumer": (
        "from semel.doors.pubsub import *; Consumer(s, 'projects/p/subscriptions/s', print)",
        "google.cloud.pubsub_v1",
        "pubsub",
    ),
    "pubsub token": (
        "from semel.doors.pubsub import *; PushToken('https://here', 'push@p')",
        "google.auth.jwt",
        "pubsub",
    ),
    "kafka": ("from semel.doors.kafka import *; Consumer(s, {}, [], print)", "confluent_kafka", "kafka"),
}

PROGRAM = """
import json, sys
import semel

s = semel.connect("memory:")
doors, told = json.loads(sys.argv[1]), {}
sys.modules |= dict.fromkeys(package for _, package, _ in doors.values())  # as where none was installed
for door, (first, _, _) in doors.items():
    try:
        exec(first)
    except semel.MissingExtra as error:
        told[door] = str(error)
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told() -> dict[str, str]:
    """What each door says."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(DOORS)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    said: dict[str, str] = json.loads(done.stdout)
    return said


@pytest.mark.parametrize("door", DOORS)
def test_a_door_without_its_package_names_the_extra(door: str, told: dict[str, str]) -> None:
    _, package, extra = DOORS[door]
    assert told[door] == str(semel.MissingExtra(extra, package))
