"""Datasets are named as OpenLineage's naming conventions say."""

from __future__ import annotations

import pytest

from weir.lineage.datasets import Dataset, file_dataset, kafka_datasets, postgres_dataset


@pytest.mark.parametrize(
    ("path", "namespace", "name"),
    [
        ("/data/orders", "file", "/data/orders"),
        ("s3a://bucket/orders/raw", "s3://bucket", "orders/raw"),
        ("gs://bucket/orders", "gs://bucket", "orders"),
        ("s3://bucket", "s3://bucket", "/"),
        ("hdfs://nn:8020/orders", "hdfs://nn:8020", "/orders"),
        ("abfss://box@store.example/orders", "abfss://box@store.example", "orders"),
    ],
)
def test_files_are_named_by_their_store_and_path(path: str, namespace: str, name: str) -> None:
    """A key in an object store has no slash in front; S3 has one scheme."""
    assert file_dataset(path) == Dataset(namespace=namespace, name=name)


def test_each_kafka_topic_is_a_dataset_at_the_first_server() -> None:
    """With Kafka's port if none is given."""
    assert kafka_datasets("a:9093,b:9093", "orders, prices") == (
        Dataset(namespace="kafka://a:9093", name="orders"),
        Dataset(namespace="kafka://a:9093", name="prices"),
    )
    assert kafka_datasets("SSL://a", "orders")[0].namespace == "kafka://a:9092"


@pytest.mark.parametrize(
    ("host", "port", "namespace"),
    [
        ("db", "5433", "postgres://db:5433"),
        ("a,b", "1,2", "postgres://a:1"),
        ("/var/run/postgresql", "", "postgres://localhost:5432"),
        ("", "5432", "postgres://localhost:5432"),
    ],
)
def test_a_postgres_table_is_named_by_its_server(host: str, port: str, namespace: str) -> None:
    """A socket is a server of this machine."""
    found = postgres_dataset(host=host, port=port, database="shop", schema="public", table="t")
    assert found == Dataset(namespace=namespace, name="shop.public.t")
