"""Show the site while its pages are written: `python -m docs.site.serve`, or `make docs-serve`."""

import contextlib
import subprocess
import time

from docs.site.build import BUILT, DOCS, BrokenDocs, stage, zensical

LOOK_SECONDS = 0.5  # soon enough for who saves a page and looks at the browser


def newest() -> float:
    return max(path.stat().st_mtime for path in DOCS.rglob("*"))


def keep_staged(server: subprocess.Popen[bytes]) -> None:
    """Hand on every change of the docs for as long as the server runs."""
    seen = newest()
    while server.poll() is None:
        time.sleep(LOOK_SECONDS)
        if (now := newest()) == seen:
            continue
        seen = now
        try:
            stage(BUILT)
        except BrokenDocs as error:
            print(error)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt), subprocess.Popen(zensical("serve", stage(BUILT))) as process:
        keep_staged(process)
