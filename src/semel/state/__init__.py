"""What decides what may happen next: documents, journal, counters, mailboxes, switches, transactions."""
