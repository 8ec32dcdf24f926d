"""The HTTP client for AWS: signing, credentials, retries, the server's time and connections.

    transport    what a store asks of either wire
    wire         ours; `boto`, a caller's own boto3 client
    mocked       botocore in place of ours while moto stands for AWS
    s3           large results as objects; `sqs`, one queue

What decides is pure: `endpoint` (where a service is), `sign`, `http1`, `errors`, `retry`, `time` and
`roundtrip` (one call from its request to its response). `credentials` are found and renewed. What moves bytes
is thin: `pool` for threads, `async_pool` for event loops.
"""
