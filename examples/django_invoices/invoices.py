"""Invoices with Django and PostgreSQL: a row and the record that it was written are one transaction.

DATABASE_URL=postgresql://user@localhost/shop python invoices.py 2026-1 4200
"""

import os
import sys
from urllib.parse import urlsplit

import django  # type: ignore[import-untyped]
from django.conf import settings  # type: ignore[import-untyped]

import semel

URL = os.environ["DATABASE_URL"]
parts = urlsplit(URL)
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": parts.hostname,
            "PORT": parts.port,
            "USER": parts.username,
            "PASSWORD": parts.password,
            "NAME": parts.path.strip("/"),
        }
    }
)
django.setup()

# Models need the settings.
from django.db import connection, models, transaction  # type: ignore[import-untyped]  # noqa: E402

# The same database: only then can both be one transaction.
s = semel.connect(URL)


class Invoice(models.Model):  # type: ignore[misc]
    """A row of yours, in a table of yours."""

    number = models.TextField()
    cents = models.IntegerField()

    class Meta:
        """Where it is, without a Django application around it."""

        app_label = "shop"
        db_table = "invoices"


@s.once("invoice:{number}")
def invoice(number: str, cents: int) -> str:
    """Write an invoice: Django commits the row and semel's record together, or neither."""
    with transaction.atomic():
        row = Invoice.objects.create(number=number, cents=cents)
        with s.transaction(within=connection.connection) as tx:
            tx.ledger.complete(semel.current_run(), f"row {row.pk}")
        if cents > 1_000_000:
            raise ValueError("that much needs a signature")
    return f"row {row.pk}"


if __name__ == "__main__":
    with connection.schema_editor() as editor:
        if Invoice._meta.db_table not in connection.introspection.table_names():
            editor.create_model(Invoice)
    sys.stdout.write(f"{invoice(sys.argv[1], int(sys.argv[2]))}\n")
