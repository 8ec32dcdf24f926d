"""What the doors of all queues share, so that each of them only translates its broker's protocol.

- `messages`: a `Handler` has each message handled once, and says what became of it
- `lanes`: what may begin, in order within a group
- `pauses`: how long to leave alone what fails
- `dispatcher`: what is in flight, and how it leaves
- `steps`: what a consumer's loops are made of
- `consuming`: the loops themselves, over a `Broker`
- `runners`: threads or tasks, which carry them out
- `sqs_names`: what a message of SQS is called
"""

from semel.doors.queues.messages import DeliveryResult, Handler, Verdict

__all__ = ["DeliveryResult", "Handler", "Verdict"]
