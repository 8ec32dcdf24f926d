"""The household's helper on AWS: one function takes what Telegram sends, the other works on it."""

from semel.provision.deployment import Deployment, Function, Queue, Secret, Setting
from semel.tables import DOCUMENTS, JOURNAL, LEDGER
from semel.tables.seeds import ACTIVITIES, MESSAGES, RESPONSE_COUNTERS

DEPLOYMENT = Deployment(
    app="household",
    ledger=LEDGER,
    tables=(LEDGER, DOCUMENTS, JOURNAL, ACTIVITIES, MESSAGES, RESPONSE_COUNTERS),
    queue=Queue(),
    functions={
        "Ingress": Function(
            handler="semel.apps.household.aws_lambda.ingress",
            about="Puts what Telegram sends into the queue, and writes nothing.",
            paths=("/webhooks/telegram",),
            sends=True,
            timeout=10,
        ),
        "Worker": Function(
            handler="semel.apps.household.aws_lambda.worker",
            about="Keeps what was said and done, and replies where it may.",
            works=True,
            may={
                LEDGER: ("GetItem", "PutItem", "UpdateItem"),
                # The kill switches.
                DOCUMENTS: ("GetItem",),
                JOURNAL: ("GetItem", "PutItem"),
                ACTIVITIES: ("GetItem", "PutItem"),
                MESSAGES: ("GetItem", "PutItem", "Query"),
                RESPONSE_COUNTERS: ("GetItem", "UpdateItem"),
            },
        ),
    },
    settings=(
        Setting(
            variable="SEMEL_APPS__HOUSEHOLD__ZONE",
            parameter="Zone",
            about="The time zone of its days and nights.",
            default="Europe/Stockholm",
        ),
        Setting(
            variable="SEMEL_APPS__HOUSEHOLD__CAP",
            parameter="Cap",
            about="So many replies in a chat on one day.",
            default="3",
        ),
        Setting(
            variable="SEMEL_APPS__HOUSEHOLD__FAST_MESSAGES",
            parameter="FastMessages",
            about="Nothing is replied where others wrote so many messages within FastSeconds.",
            default="3",
        ),
        Setting(
            variable="SEMEL_APPS__HOUSEHOLD__FAST_SECONDS",
            parameter="FastSeconds",
            about="In how many seconds that counts.",
            default="60",
        ),
        Setting(
            variable="SEMEL_APPS__HOUSEHOLD__MESSAGE_DAYS",
            parameter="MessageDays",
            about="For how many days a message is kept.",
            default="90",
        ),
        Setting(
            variable="SEMEL_APPS__HOUSEHOLD__CHATS",
            parameter="Chats",
            about="The chats that are listened to, with commas between them; all where none is named.",
            default="",
        ),
    ),
    secrets=(
        Secret(
            variable="SEMEL_SECRET",
            field="secret",
            about="32 random bytes, by which messages are sealed",
        ),
        Secret(
            variable="SEMEL_APPS__HOUSEHOLD__SECRET_TOKEN",
            field="secret_token",
            about="what setWebhook was called with",
        ),
        Secret(
            variable="SEMEL_APPS__HOUSEHOLD__BOT_TOKEN",
            field="bot_token",
            about="the bot's token, without which replies are kept in the journal",
            optional="HasBot",
        ),
    ),
    requires="semel[apps,crypto,privacy,zones]",
)
