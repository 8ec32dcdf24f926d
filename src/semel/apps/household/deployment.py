"""The household's helper on AWS: one function takes what Telegram sends, the other works on it."""

from semel.apps.deployment import Deployment, DeploymentQueue, Function, secrets_of, settings_of
from semel.apps.household.settings import Settings
from semel.apps.tables import ACTIVITIES, MESSAGES, RESPONSE_COUNTERS
from semel.tables import DOCUMENTS, JOURNAL, LEDGER

SETTINGS = settings_of(
    "household",
    Settings,
    {
        "zone": "The time zone of its days and nights.",
        "cap": "So many replies in a chat on one day.",
        "fast_messages": "Nothing is replied where others wrote so many messages within FastSeconds.",
        "fast_seconds": "In how many seconds that counts.",
        "fast_look": "So many messages are looked at for that, the latest of the chat.",
        "message_days": "For how many days a message is kept.",
        "quiet_from": "When the night begins, in which nothing is replied.",
        "quiet_to": "When it ends.",
        "chats": "The chats that are listened to, with commas between them; all where none is named.",
        "classifier": "The function that finds out what a message tells: package.module:function.",
        "responder": "The function that words a reply: package.module:function.",
        "lost_sends": "When nobody knows whether a reply was sent: hold, or repeat.",
        "telegram_url": "Where Telegram's API is.",
        "telegram_timeout": "For how many seconds Telegram is waited for.",
    },
)

DEPLOYMENT = Deployment(
    app="household",
    ledger=LEDGER,
    tables=(LEDGER, DOCUMENTS, JOURNAL, ACTIVITIES, MESSAGES, RESPONSE_COUNTERS),
    queue=DeploymentQueue(),
    functions={
        "Ingress": Function(
            handler="semel.apps.household.aws_lambda.ingress",
            about="Puts what Telegram sends into the queue, and writes nothing.",
            paths=("/webhooks/telegram",),
            sends=True,
            timeout=10,
            secrets=("secret", "secret_token"),
            settings=("Chats",),
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
            secrets=("secret", "bot_token"),
        ),
    },
    settings=SETTINGS,
    secrets=secrets_of(
        "household",
        {
            "secret": "32 random bytes, by which messages are sealed",
            "secret_token": "what setWebhook was called with",
            "bot_token": "the bot's token, without which replies are kept in the journal",
        },
        optional={"bot_token": "HasBot"},
    ),
    requires="semel[apps,crypto,privacy,zones]",
)
