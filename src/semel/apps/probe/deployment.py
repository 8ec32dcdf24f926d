"""The probe on AWS: one function."""

from semel.apps.deployment import Deployment, Function, secrets_of, settings_of
from semel.apps.probe.settings import Settings
from semel.apps.tables import PROBE
from semel.tables import DOCUMENTS

SETTINGS = settings_of(
    "probe",
    Settings,
    {
        "record_ttl": "For how many seconds an answer is remembered, where its request does not say.",
        "shortest_ttl": "For how many seconds at least, where its request says it.",
        "longest_ttl": "For how many seconds at most.",
        "on_lapsed": "When nobody knows whether messages were sent: hold, or repeat.",
        "lease": "After how many seconds of silence an attempt is taken for dead.",
        "broker_timeout": "For how many seconds the broker is waited for.",
        "max_messages": "So many messages in a request at most.",
        "max_seconds": "For how many seconds a request may wait for messages.",
        "max_body": "So many bytes in a request at most.",
        "max_response": "So many bytes of messages in a response at most.",
    },
)

DEPLOYMENT = Deployment(
    app="probe",
    ledger=PROBE,
    tables=(PROBE, DOCUMENTS),
    functions={
        "Ingress": Function(
            handler="semel.apps.probe.aws_lambda.ingress",
            about="Produces and consumes messages, each request once.",
            paths=("/messages/produce", "/messages/consume"),
            may={
                PROBE: ("GetItem", "PutItem", "UpdateItem"),
                # The queues, where there is no broker.
                DOCUMENTS: ("GetItem", "PutItem", "UpdateItem"),
            },
            secrets=("token", "broker"),
        ),
    },
    settings=SETTINGS,
    secrets=secrets_of(
        "probe",
        {
            "token": "what every request has to show",
            "broker": "the broker's URL, without which the queues are on the store",
        },
        optional={"broker": "HasBroker"},
    ),
    requires="semel[privacy]",
)
