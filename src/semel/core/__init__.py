"""What decides whether something runs: commands, the ledger, the path of a call, and drivers."""
