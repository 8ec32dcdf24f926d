"""What a message of SQS is called, wherever it is received: by a consumer, or in a Lambda function."""

from semel.core.keys import own_key


def sqs_key(queue: str, id: str, body: str, dedup: str | None, group: str | None) -> str:
    """The name that its sender gave a message, within its group where there is one, or else SQS's own.

    A hash of the body names what is said, and not that it is said: an equal message a day later is another.
    """
    if dedup is None or dedup == _hash(body):
        return own_key("sqs", queue, id)
    return own_key("sqs", queue, dedup) if group is None else own_key("sqs", queue, group, dedup)


def _hash(body: str) -> str:
    from hashlib import sha256

    return sha256(body.encode()).hexdigest()
