"""A local S3 server with an empty bucket."""

import contextlib
import logging
import os
from collections.abc import Iterator

import boto3
import pytest
import requests
from moto.server import ThreadedMotoServer

from embark_jax.launch.one_host import free_port

PORT = free_port()
"""One for all servers of this process, whose client does not look for another."""


@contextlib.contextmanager
def s3_server() -> Iterator[ThreadedMotoServer]:
    """Starts a server with an empty bucket, which the environment names."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=PORT, verbose=False)
    server.start()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{PORT}")
        environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
        environment.setenv("AWS_ACCESS_KEY_ID", "key")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        environment.setenv("AWS_MAX_ATTEMPTS", "1")
        environment.delenv("AWS_CONFIG_FILE", raising=False)
        _ask("reset")
        boto3.client("s3").create_bucket(Bucket="bucket")
        try:
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def denied() -> Iterator[None]:
    """Has the server refuse all keys."""
    _ask("reset-auth", "0")
    try:
        yield
    finally:
        _ask("reset-auth", "inf")


def object_names(prefix: str = "") -> list[str]:
    """Returns the names of the bucket's objects."""
    pages = boto3.client("s3").get_paginator("list_objects_v2")
    return [
        each["Key"]
        for page in pages.paginate(Bucket="bucket", Prefix=prefix)
        for each in page.get("Contents", [])
    ]


def objects(prefix: str = "") -> dict[str, bytes]:
    """Returns the objects of the bucket, by name; none may go meanwhile."""
    client = boto3.client("s3")
    return {
        name: client.get_object(Bucket="bucket", Key=name)["Body"].read()
        for name in object_names(prefix)
    }


def _ask(question: str, data: str = "") -> None:
    address = f"{os.environ['AWS_ENDPOINT_URL']}/moto-api/{question}"
    requests.post(address, data=data.encode()).raise_for_status()
