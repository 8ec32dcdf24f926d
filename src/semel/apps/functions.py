"""An application as AWS Lambda functions: one behind an API, and one behind the queue of its inbox.

They are set up by their environment: `SEMEL_ENV`, `SEMEL_SECRET`, `SEMEL_URL` where the tables are not those
of DynamoDB here, `SEMEL_INBOX__<APP>__QUEUE` and `..._DEAD_LETTERS`, and `SEMEL_APPS__<APP>__...` for every
setting. Where senders were told another address than the API's own, `SEMEL_SERVICE__PUBLIC_URL` is what it
begins with.
"""

import functools
import os
from typing import Any, Final

from semel.apps.application import Handles, facts_of, worker_options
from semel.apps.configuration import gather, store_of, url_by_variables
from semel.apps.keyfile import secrets_of
from semel.apps.ledgers import binding
from semel.apps.settings import from_environment
from semel.aws.sqs import Queue
from semel.connect import Semel
from semel.doors.aws_lambda import Lambda
from semel.doors.aws_lambda.attempts import LambdaEvent, remaining
from semel.doors.aws_lambda.proxy import LambdaResponse, body_of, pairs_of, request_of, respond
from semel.doors.http.responses import HTTPResponse
from semel.doors.inbox.sqs import SQSInbox
from semel.doors.inbox.worker import MAX_ATTEMPTS
from semel.doors.queues.messages import DeliveryResult
from semel.doors.sqs.broker import dead_letter
from semel.doors.sqs.message import Message
from semel.doors.webhooks import WebhookResponse
from semel.errors import InvalidOption
from semel.redact import Redactor
from semel.tables import LEDGER
from semel.telemetry.emf import Emf

# Other systems are waited for up to 10 seconds: what was begun with less than that left of an invocation
# would end with it, and nobody would know whether it was done.
LEAST: Final = 12.0


class Functions:
    """The functions of an application, made by the first event and kept for those after it."""

    def __init__(self, name: str, kind: Any) -> None:
        self._name, self._kind, self._facts = name, kind, facts_of(kind)
        self._opened: Semel | None = None

    @classmethod
    def of(cls, name: str, kind: Any) -> "Functions":
        """The functions of an application by its class, on the ledger that the service has for it too."""
        return cls(name, kind)

    def ingress(self, event: LambdaEvent, _context: Any) -> LambdaResponse:
        """Take a delivery that came by an HTTP API, a REST API, a function URL or a load balancer."""
        with self._metrics.invocation():
            return respond(_answer(self._received(event)), event)

    def worker(self, event: LambdaEvent, context: Any) -> Any:
        """Handle what waits in the queue; what could not be handled is reported, and comes again."""
        left = remaining(context)
        if left is not None and left < LEAST:
            raise InvalidOption(f"give {self._name}'s worker a time-out of 30 seconds: it has {left:.0f}")
        return self._worker(event, context)

    def _received(self, event: LambdaEvent) -> WebhookResponse:
        request = request_of(event)
        hook = self._app.hooks.get(request.path.removeprefix(request.root))
        if hook is None:
            return WebhookResponse.problem(404)
        if request.method != "POST":
            return WebhookResponse.problem(405, {"Allow": "POST"})
        url = _address(event) + request.path + (f"?{request.query}" if request.query else "")
        received: WebhookResponse = hook.receive(pairs_of(event), body_of(event), method="POST", url=url)
        return received

    def close(self) -> None:
        """Let go of what the first event made; the next one makes it anew."""
        for name in ("_worker", "_app", "_inbox", "_dead", "_on", "_metrics"):
            made = self.__dict__.pop(name, None)
            if name in ("_app", "_inbox", "_dead") and made is not None:
                made.close()
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    # Made by the first event

    @functools.cached_property
    def _metrics(self) -> Emf:
        return Emf(service=self._name, env=os.environ.get("SEMEL_ENV", "dev"))

    @property
    def s(self) -> Semel:
        """The ledger, opened by now."""
        return self._on.s

    @functools.cached_property
    def _on(self) -> Lambda:
        return Lambda(self._ledger, min_remaining=LEAST, metrics=self._metrics)

    def _ledger(self) -> Semel:
        configuration = gather(None)
        if not configuration.tree.get("semel", {}).get("url"):
            url = url_by_variables(self._facts.ledger_table or LEDGER, os.environ)
            configuration.put(("semel", "url"), url, "the environment")
        store = store_of(configuration)
        secrets = secrets_of(store, configuration)
        if secrets.secret is None and self._facts.needs_secret:
            raise InvalidOption("set SEMEL_SECRET to 32 random bytes: nothing personal is kept in clear")
        at = f"{self._kind.__module__}:{self._kind.__qualname__}"
        section = {"at": at} | configuration.tree.get("apps", {}).get(self._name, {})
        self._opened = binding(self._name, store, secrets, section).open(redact=Redactor())
        return self._opened

    @functools.cached_property
    def _inbox(self) -> SQSInbox | None:
        if not issubclass(self._kind, Handles):
            return None
        queue = self._setting("QUEUE")
        if not queue:
            raise InvalidOption(f"set {self._variable('QUEUE')} to the URL of a FIFO queue of SQS")
        return SQSInbox(self._on.s, self._name, queue, shared=True)

    @functools.cached_property
    def _dead(self) -> Queue | None:
        url = self._setting("DEAD_LETTERS")
        return Queue(url) if url else None

    def _setting(self, what: str) -> str:
        return os.environ.get(self._variable(what), "")

    def _variable(self, what: str) -> str:
        return f"SEMEL_INBOX__{self._name.upper()}__{what}"

    @functools.cached_property
    def _app(self) -> Any:
        settings = from_environment(self._kind.settings_type, self._name, os.environ)
        return self._kind(self._on.s, self._inbox, settings)

    @functools.cached_property
    def _worker(self) -> Any:
        app, inbox = self._app, self._inbox
        if inbox is None:
            raise InvalidOption(f"{self._name} has nothing for a worker to do")
        options = worker_options(app)
        options.setdefault("max_attempts", MAX_ATTEMPTS)
        # An attempt lasts as long as its invocation.
        options.pop("lease", None)
        # What is failed for good would hold up those behind it until the queue itself gives it up.
        dead = None if self._dead is None else functools.partial(_send_dead_letter, self._dead)
        protect = self._on.sqs(
            key=lambda record: inbox.record_key(inbox.unwrapped(record["body"]).key),
            person=lambda record: inbox.unwrapped(record["body"]).subject,
            dead=dead,
            **options,
        )
        return protect(lambda record: inbox.handled(app.handle, record["body"]))


def _send_dead_letter(queue: Queue, record: dict[str, Any], taken: DeliveryResult) -> None:
    """Send a record to the dead letters; Lambda takes it out of its queue then."""
    source, system = record["eventSourceARN"].rpartition(":")[2], record["attributes"]
    message = Message(
        id=record["messageId"], body=record["body"], queue=source, group=system.get("MessageGroupId")
    )
    queue.call("SendMessage", dead_letter(message, taken, fifo=queue.fifo).entry(), write=True)


def _answer(reply: WebhookResponse) -> HTTPResponse:
    return HTTPResponse(reply.status, list(reply.headers.items()), reply.body)


def _address(event: LambdaEvent) -> str:
    """Where the sender was told to deliver: whoever signs, signs that too."""
    if address := os.environ.get("SEMEL_SERVICE__PUBLIC_URL"):
        return address.rstrip("/")
    hosts = [value for name, value in pairs_of(event) if name.lower() == "host"]
    return f"https://{event['requestContext'].get('domainName') or (hosts or [''])[0]}"
