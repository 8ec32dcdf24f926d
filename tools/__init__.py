"""Programs for publishing semel: its versions and address, what it brings along, and whether that is safe."""
