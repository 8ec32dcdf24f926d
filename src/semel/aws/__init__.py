"""The thin wire to AWS: signing, credentials, retries, the server's time, and HTTP with nothing to spare.

    transport   what a store asks of either wire
    wire        ours; boto, a caller's own boto3 client
    mocked      botocore in place of ours while moto stands for AWS
    s3          large results as objects

What decides is pure: `sign`, `http1`, `errors`, `retry`, `servertime`, `exchange`. What moves bytes is thin:
`pool` for threads, `apool` for event loops.
"""
