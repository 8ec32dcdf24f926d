"""`semel` with the app of the tests in it: `python -m tests.service.launch serve --config ...`."""

from semel.cli import main
from semel.service import house
from semel.service.house import Entry

if __name__ == "__main__":
    house.APPS["echo"] = Entry("tests.service.echo:Echo")
    main()
