"""Write the pages of all public names: python -m tests.reference."""

from tests.reference.pages import FOLDER, PAGES, text

FOLDER.mkdir(exist_ok=True)
for file, page in PAGES.items():
    (FOLDER / file).write_text(text(page), "utf-8")
