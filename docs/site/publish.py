"""Put the built site beside those of other versions: `python -m docs.site.publish FOLDER`.

The folder is what a web server serves. Each version is a folder in it, and the newest is where a reader who
asks for no version is sent. `versions.json` is what the site's list of versions reads.
"""

import json
import re
import shutil
import sys
import tomllib
from pathlib import Path

from docs.site.build import BUILT, ROOT

VERSION = re.compile(r"\d+\.\d+")
FORWARD = """<!doctype html>
<meta charset="utf-8">
<title>semel</title>
<meta http-equiv="refresh" content="0; url={version}/">
<a href="{version}/">semel {version}</a>
"""


def release() -> str:
    """The version that the pages describe; a patch changes none of them."""
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    return ".".join(version.split(".")[:2])


def publish(site: Path, folder: Path, version: str) -> None:
    """Add a version, or renew it, and leave the others as they are."""
    shutil.rmtree(folder / version, ignore_errors=True)
    shutil.copytree(site, folder / version)
    versions = sorted(
        (path.name for path in folder.iterdir() if VERSION.fullmatch(path.name)),
        key=lambda name: [int(part) for part in name.split(".")],
        reverse=True,
    )
    listed = [
        {"version": each, "title": each, "aliases": ["latest"] if each == versions[0] else []}
        for each in versions
    ]
    (folder / "versions.json").write_text(json.dumps(listed, indent=2) + "\n", "utf-8")
    (folder / "index.html").write_text(FORWARD.format(version=versions[0]), "utf-8")


if __name__ == "__main__":
    publish(BUILT / "site", Path(sys.argv[1]), release())
