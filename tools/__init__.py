"""Programs for publishing semel: what it brings along, and whether any of that is known to be vulnerable."""
