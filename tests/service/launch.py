"""`semel` with the app of the tests in it: `python -m tests.service.launch serve --config ...`."""

from semel.apps import finding
from semel.cli import main

if __name__ == "__main__":
    finding.APPS["echo"] = "tests.service.echo:Echo"
    main()
