"""Doors: where work comes in, each in a module of its own that is imported by its name."""
