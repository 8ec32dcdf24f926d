"""`semel serve` and `semel work`: the service, and its workers alone."""

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from semel import errors
from semel.extras import require

if TYPE_CHECKING:
    from semel.apps.reading import Given

Config: TypeAlias = Annotated[
    str | None,
    typer.Option(envvar="SEMEL_CONFIG", help="The settings; semel.toml, where there is one here."),
]
Url: TypeAlias = Annotated[str | None, typer.Option(help="The store, such as sqlite:///semel.db.")]
Workers: TypeAlias = Annotated[int | None, typer.Option(min=0, help="Threads for each app's inbox.")]
App: TypeAlias = Annotated[
    list[str] | None, typer.Option("--app", help="Only this app; repeat it for more. All that are enabled.")
]

Chosen: TypeAlias = dict[tuple[str, ...], Any]

FILE = "semel.toml"


def serve(
    *,
    config: Config = None,
    url: Url = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen on; 0 takes a free one.")] = None,
    workers: Workers = None,
    app: App = None,
    traffic: Annotated[
        bool, typer.Option("--traffic", help="To try it: settings of its own, and made-up traffic.")
    ] = False,
) -> None:
    """Take webhooks, work on what they bring, and lend the ledger over HTTP.

    semel serve --config semel.toml

    Every setting can also be an environment variable: SEMEL_URL, SEMEL_SERVICE__PORT.
    """
    require("uvicorn", "service")
    require("fastapi", "service")
    require("prometheus_client", "service")
    from semel.service import run, serving

    options = _options(url, host=host, port=port, workers=workers)
    if traffic:
        _serve_sample(options, alone=config is None and app is None)
        return
    serving.serve(run.begin(_given(config, options), tuple(app or ())), typer.echo)


def _serve_sample(options: Chosen, *, alone: bool) -> None:
    """The service on settings of the sample, with traffic."""
    from semel.service import run, serving, traffic

    if not alone:
        raise errors.UsageError(
            "--traffic has settings of its own: leave out --config, SEMEL_CONFIG and --app"
        )
    # Who is tired of it before it has begun leaves it as one who is later.
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    with traffic.sampled(options, typer.echo) as given:
        house = run.begin(given)
        serving.serve(house, typer.echo, lambda address: traffic.traffic(house, address, typer.echo))


def work(*, config: Config = None, url: Url = None, workers: Workers = None, app: App = None) -> None:
    """Work on what waits in the inboxes, and answer no requests.

    semel work --config semel.toml --app support
    """
    require("prometheus_client", "service")
    from semel.service import run

    given = _given(config, _options(url, workers=workers))
    run.work(run.begin(given, tuple(app or ())), typer.echo)


def _options(url: str | None, **options: Any) -> Chosen:
    chosen: Chosen = {("service", name): value for name, value in options.items() if value is not None}
    return chosen if url is None else {**chosen, ("semel", "url"): url}


def _given(config: str | None, options: Chosen) -> "Given":
    from semel.apps.reading import gather

    if config is None and Path(FILE).is_file():
        config = FILE
    return gather(config, os.environ, options)
