"""The service: one process that receives webhooks, handles their events, and serves the ledger over HTTP.

    semel serve --config semel.toml

`settings` says what can be set, `settings_file` writes it down for who begins, and `applications` says which
apps are named there. `runtime` opens the store and the apps, `workers` are the threads that handle messages,
`processes` starts other processes of the same command, and `run` keeps all of them until a signal comes.

`server` is uvicorn; `httptools_protocol` or `h11_protocol` keeps the head of each request to its limit.
Every request goes through `middleware`, which holds it to the `limits`. What is no webhook goes on to `app`,
with the routes of `health`, `pages` and `v1`, for whom `tokens` lets in; `dashboards` mounts one for each
application. `problems` are the refusals, and `openapi` describes them; `logs` and `metrics` tell what went
on.

`traffic` sends made-up deliveries to the service itself, which `sample_data` makes.
"""
