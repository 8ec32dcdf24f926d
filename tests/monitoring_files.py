"""The files in docs/telemetry: `python -m tests.monitoring_files` writes them."""

from semel.provision.monitoring import files
from tests.seeds import ROOT

FOLDER = ROOT / "docs" / "telemetry"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
