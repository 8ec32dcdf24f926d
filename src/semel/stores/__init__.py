"""Interpreters of commands, one for each place that can remember."""
