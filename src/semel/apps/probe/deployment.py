"""The probe on AWS: one function."""

from semel.provision.deployment import Deployment, Function, Secret, Setting
from semel.tables import DOCUMENTS
from semel.tables.seeds import PROBE

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
        ),
    },
    settings=(
        Setting(
            variable="SEMEL_APPS__PROBE__RECORD_TTL",
            parameter="RecordTtl",
            about="For how many seconds an answer is remembered, where its request does not say.",
            default="86400",
        ),
        Setting(
            variable="SEMEL_APPS__PROBE__ON_LAPSED",
            parameter="OnLapsed",
            about="When nobody knows whether messages were sent: hold, or repeat.",
            default="hold",
        ),
    ),
    secrets=(
        Secret(
            variable="SEMEL_APPS__PROBE__TOKEN",
            field="token",
            about="what every request has to show",
        ),
        Secret(
            variable="SEMEL_APPS__PROBE__BROKER",
            field="broker",
            about="the broker's URL, without which the queues are on the store",
            optional="HasBroker",
        ),
    ),
    requires="semel[privacy]",
)
