"""The HTTP client for AWS: DynamoDB, SQS and S3.

wire           one call from its request to its response: signing, sending, retrying; start here
http1          parses responses
pool           the connections of threads and of event loops
errors         what a failure means, and whether to retry
time           the server's time, from its responses
environment    region, endpoint, proxy, certificates and credentials
boto           a caller's own boto3 client, and moto
sqs, s3        one queue; large results as objects
"""
