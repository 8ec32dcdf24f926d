"""What the doors of all queues share: `messages` has each one handled once, and says what became of it.

`sqs_names` says what a message of SQS is called.
"""

from semel.doors.queues.messages import Handler, Taken, Verdict

__all__ = ["Handler", "Taken", "Verdict"]
