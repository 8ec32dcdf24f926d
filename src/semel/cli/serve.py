"""`semel serve` and `semel work`: the service, and its workers alone."""

import signal
import sys
from contextlib import AbstractContextManager
from typing import Annotated, Any, TypeAlias

import typer

from semel import errors
from semel.cli.common import ConfigOption, UrlOption, app_names, gathered
from semel.core.runtime import require

WorkersOption: TypeAlias = Annotated[
    int | None, typer.Option(min=0, help="The number of threads for each app's inbox.")
]
AppsOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--app",
        metavar="NAME",
        help="Run only this app; can be repeated. By default all that are enabled.",
        autocompletion=app_names,
    ),
]

Chosen: TypeAlias = dict[tuple[str, ...], Any]


def serve(
    *,
    config: ConfigOption = None,
    url: UrlOption = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen on; 0 takes a free one.")] = None,
    workers: WorkersOption = None,
    app: AppsOption = None,
    traffic: Annotated[
        bool, typer.Option("--traffic", help="Try it out: sample settings and generated traffic.")
    ] = False,
) -> None:
    """Receive webhooks, handle their events, and serve the ledger over HTTP.

    semel serve --config semel.toml

    Every setting can also be an environment variable: SEMEL_URL, SEMEL_SERVICE__PORT.
    """
    require("uvicorn", "service")
    require("fastapi", "service")
    require("prometheus_client", "service")
    from semel.service import run, server

    options = _options(url, host=host, port=port, workers=workers)
    if traffic:
        _serve_sample(options, alone=config is None and app is None)
        return
    server.serve(run.begin(gathered(config, options), tuple(app or ())), typer.echo)


def _serve_sample(options: Chosen, *, alone: bool) -> None:
    """The service on settings of the sample, with traffic."""
    from semel.service import run, server
    from semel.service.traffic import Traffic, sampled

    if not alone:
        raise errors.UsageError(
            "--traffic has settings of its own: leave out --config, SEMEL_CONFIG and --app"
        )
    # Who is tired of it before it has begun leaves it as one who is later.
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    notes: list[str] = []  # told later: the first line is the dashboard's address
    with sampled(options, notes.append) as configuration:
        runtime = run.begin(configuration)

        def beside(address: str) -> AbstractContextManager[None]:
            for note in notes:
                typer.echo(note)
            return Traffic(runtime, address, typer.echo).running()

        server.serve(runtime, typer.echo, beside)


def work(
    *,
    config: ConfigOption = None,
    url: UrlOption = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on, with --port.")] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", "--work-port", help="The port for health and metrics; 0 takes a free one."),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The number of processes. By default one for each processor, and a single one with --port.",
        ),
    ] = None,
    workers: WorkersOption = None,
    app: AppsOption = None,
) -> None:
    """Handle the messages in the inboxes, without receiving webhooks.

    semel work --config semel.toml --app support --port 9100
    """
    require("prometheus_client", "service")
    from semel.service import run

    options = _options(url, host=host, workers=workers, processes=processes, work_port=port)
    configuration = gathered(config, options)
    runtime = run.begin(configuration, tuple(app or ()))
    if runtime.settings.service.work_port is None:
        run.work(runtime, typer.echo)
        return
    require("uvicorn", "service")
    require("fastapi", "service")
    from semel.service import server

    server.work(runtime, runtime.settings.service.work_port, typer.echo)


def _options(url: str | None, **options: Any) -> Chosen:
    chosen = {("semel", "url"): url} | {("service", name): value for name, value in options.items()}
    return {path: value for path, value in chosen.items() if value is not None}
