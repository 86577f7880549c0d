"""The AWS API ports implemented on botocore. Only this package imports botocore.

``aws_session`` creates clients and finds credentials and region, ``service_client`` sends calls (rate limits, retries, threads,
decoding, and turns exceptions into ``AwsError``), ``api_clients`` lists the calls of each service.
"""
