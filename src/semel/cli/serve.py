"""`semel serve` and `semel work`: the service, and its workers alone."""

import signal
import sys
from typing import Annotated, Any, TypeAlias

import typer

from semel import errors
from semel.cli.common import ConfigOption, UrlOption, app_names, gathered
from semel.core.extras import require

WorkersOption: TypeAlias = Annotated[int | None, typer.Option(min=0, help="Threads for each app's inbox.")]
AppsOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--app",
        metavar="NAME",
        help="Only this app; repeat it for more. All that are enabled.",
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
    from semel.service import run, server

    options = _options(url, host=host, port=port, workers=workers)
    if traffic:
        _serve_sample(options, alone=config is None and app is None)
        return
    server.serve(run.begin(gathered(config, options), tuple(app or ())), typer.echo)


def _serve_sample(options: Chosen, *, alone: bool) -> None:
    """The service on settings of the sample, with traffic."""
    from semel.service import run, server, traffic

    if not alone:
        raise errors.UsageError(
            "--traffic has settings of its own: leave out --config, SEMEL_CONFIG and --app"
        )
    # Who is tired of it before it has begun leaves it as one who is later.
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    with traffic.sampled(options, typer.echo) as configuration:
        runtime = run.begin(configuration)
        server.serve(runtime, typer.echo, lambda address: traffic.traffic(runtime, address, typer.echo))


def work(
    *,
    config: ConfigOption = None,
    url: UrlOption = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on, with --port.")] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", "--work-port", help="Tell health and metrics here; 0 takes a free one."),
    ] = None,
    workers: WorkersOption = None,
    app: AppsOption = None,
) -> None:
    """Work on what waits in the inboxes, and take no webhooks.

    semel work --config semel.toml --app support --port 9100
    """
    require("prometheus_client", "service")
    from semel.service import run

    configuration = gathered(config, _options(url, host=host, workers=workers, work_port=port))
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
