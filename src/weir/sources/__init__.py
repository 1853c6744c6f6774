"""Sources that Weir reads itself, for ``Job.source``; all others are Spark's, as ``kafka``.

``Source`` and what belongs to it are the contract of sources of your own (``docs/SOURCES.md``).
"""

from weir.sources.base import (
    ExternallyInducedSourceReader,
    Source,
    SourceReader,
    SourceReaderContext,
    SourceSplit,
    SplitEnumerator,
    SplitEnumeratorContext,
    SplitRecords,
    SplitSerializer,
    decode_splits,
    encode_splits,
)
from weir.sources.files import FileSource
from weir.sources.kafka_connector import KafkaSource, kafka
from weir.sources.split_reader import Fetched, SplitReader
from weir.sources.topics.topic import KafkaTopic
from weir.sources.watermarks import Watermarks

__all__ = [
    "ExternallyInducedSourceReader",
    "Fetched",
    "FileSource",
    "KafkaSource",
    "KafkaTopic",
    "Source",
    "SourceReader",
    "SourceReaderContext",
    "SourceSplit",
    "SplitEnumerator",
    "SplitEnumeratorContext",
    "SplitReader",
    "SplitRecords",
    "SplitSerializer",
    "Watermarks",
    "decode_splits",
    "encode_splits",
    "kafka",
]
