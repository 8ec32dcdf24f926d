"""nginx on this machine, in front of a server on its loopback interface, and clients on another network."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.servers.running import Server, Unavailable, folder, serving

CONFIGURATION = """
daemon off;
worker_processes 1;
pid nginx.pid;
error_log stderr;
events {{ worker_connections 64; }}
http {{
  access_log off;
  client_body_temp_path body; proxy_temp_path proxy;
  fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  server {{
    listen {host}:{port};
    location / {{ proxy_pass {to}; {more} }}
  }}
}}
"""


class Answer(NamedTuple):
    """What a client on the other network was answered."""

    status: int
    headers: dict[str, str]
    body: str


class Proxied(NamedTuple):
    """A server behind nginx, and the network that reaches nginx alone."""

    url: str
    namespace: str
    addresses: tuple[str, ...]

    def curl(self, path: str, *options: str, source: int = 0) -> Answer:
        """Ask from one of the network's addresses."""
        command = ["ip", "netns", "exec", self.namespace, "curl", "--silent", "--include", "--max-time", "60"]
        command += ["--interface", self.addresses[source], *options, self.url + path]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        head, _, body = told.replace("\r\n", "\n").partition("\n\n")
        first, *lines = head.split("\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        return Answer(int(first.split()[1]), headers, body)

    def submit(self, path: str, jar: Path, *more: str, source: int = 0, **fields: str) -> Answer:
        """Send a form, with what the page that it stands on hides in it."""
        cookies = ("--cookie", str(jar), "--cookie-jar", str(jar), *more)
        page = self.curl(path, *cookies, source=source).body
        token = page.partition('name="form_token" value="')[2].partition('"')[0]
        data = [f"{name}={value}" for name, value in (fields | {"form_token": token}).items()]
        options = [part for one in data for part in ("--data-urlencode", one)]
        return self.curl(path, *cookies, *options, source=source)


def binary() -> str:
    """Where nginx is, if a network can be made for it as well."""
    found = [shutil.which(name) for name in ("nginx", "ip", "curl")]
    if None in found or os.geteuid() != 0:
        raise Unavailable("nginx in front of it takes root, nginx, iproute2 and curl: install these")
    return str(found[0])


@contextmanager
def network() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """A network namespace: its name, this machine's address there, and its two own ones."""
    pid = os.getpid()
    name, here, there = f"semel-{pid}", f"sm{pid}a", f"sm{pid}b"
    subnet = f"10.231.{pid % 251}.{pid // 251 % 32 * 8}".rpartition(".")
    host, *clients = (f"{subnet[0]}.{int(subnet[2]) + number}" for number in (1, 2, 3))
    inside = ("ip", "-n", name)
    try:
        run("ip", "netns", "add", name)
        run("ip", "link", "add", here, "type", "veth", "peer", "name", there)
        run("ip", "link", "set", there, "netns", name)
        run("ip", "addr", "add", f"{host}/29", "dev", here)
        run("ip", "link", "set", here, "up")
        for client in clients:
            run(*inside, "addr", "add", f"{client}/29", "dev", there)
        run(*inside, "link", "set", there, "up")
        yield name, host, tuple(clients)
    finally:
        subprocess.run(["ip", "link", "del", here], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"no network can be made here: {' '.join(command)}: {done.stderr.strip()}")


@contextmanager
def nginx(to: str, more: str = "") -> Iterator[Proxied]:
    """nginx that passes everything on to an address, with `more` in its location, as others reach it."""
    program = binary()
    with network() as (namespace, host, clients), folder() as place:

        def command(port: int) -> list[str]:
            text = CONFIGURATION.format(host=host, port=port, to=to, more=more)
            (place / "nginx.conf").write_text(text)
            return [program, "-p", str(place), "-e", "stderr", "-c", str(place / "nginx.conf")]

        def ready(port: int) -> bool:
            asked = ("curl", "--silent", "--output", "/dev/null", f"http://{host}:{port}/")
            return subprocess.run(asked, check=False).returncode == 0

        with serving(Server(place, command, ready)) as port:
            yield Proxied(f"http://{host}:{port}", namespace, clients)
