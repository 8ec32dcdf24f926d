"""Ask the service in this container for a path, such as /health/ready: exit with 0 if it answers 200.

The image has no curl. What it prints is kept by the engine, and shown by `docker inspect`.
"""

import http.client
import os
import sys

# Below the time that the engine gives it, so that it gets to say what is wrong.
TIMEOUT_SECONDS = 4


def main(path: str) -> int:
    """Ask, print the answer, and return the exit code."""
    port = int(os.environ["SEMEL_SERVICE__PORT"])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        print(response.status, response.read().decode(errors="replace"))
    except (OSError, http.client.HTTPException) as error:
        print(f"no answer: {error}")
        return 1
    return 0 if response.status == 200 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
