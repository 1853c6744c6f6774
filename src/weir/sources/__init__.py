"""Sources that Weir reads itself: ``Job.source`` takes them. Others are streaming DataFrames of
Spark's."""

from weir.sources.files import FileSource

__all__ = ["FileSource"]
