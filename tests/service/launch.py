"""`semel` with the app of the tests in it: `python -m tests.service.launch serve --config ...`."""

from semel.apps import registry
from semel.cli import main

if __name__ == "__main__":
    registry.APPS["echo"] = "tests.service.echo:Echo"
    main()
