"""Opens text files, compressed or not.

A file's name says how it is compressed, as for Spark and Arrow. Other compressions are refused by
name, as is a compressed file whose name does not say so.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

#: Arrow's codecs by the ends of names. Arrow reads concatenated streams, and refuses cut ones.
CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".br": "brotli"}
_OTHERS = {
    ".7z", ".arj", ".deflate", ".lz", ".lzma", ".lzo", ".rar", ".snappy", ".sz", ".tar", ".tbz2",
    ".tgz", ".txz", ".xz", ".z", ".zip", ".zlib",
}  # fmt: skip
#: The first bytes of compressed files, none of which text starts with.
_SIGNS = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"BZh91AY&SY": "bz2",
    b"\xfd7zXZ\x00": "xz",
    b"PK\x03\x04": "zip",
    b"\xff\x06\x00\x00sNaPpY": "snappy",
}
_BYTE_ORDERS = (b"\xff\xfe", b"\xfe\xff")
_UTF8_MARK = b"\xef\xbb\xbf"
_ADMITTED = ", ".join(CODECS)


def open_text(path: Path) -> pa.NativeFile:
    """The decompressed bytes, to be read in order, without UTF-8's mark.

    Raises ``OSError``, or ``ValueError`` for a compression or encoding that is not read.
    """
    suffix = path.suffix.lower()
    if suffix in _OTHERS:
        raise ValueError(
            f"files that end in {path.suffix} are not read: decompress it, or use one of"
            f" {_ADMITTED}"
        )
    file = pa.OSFile(str(path))
    start = file.read(16)
    file.seek(0)
    codec = CODECS.get(suffix)
    if codec is None:
        _check_start(start)
    elif start:
        file = pa.CompressedInputStream(file, codec)
    return file


def without_mark(start: bytes) -> bytes:
    """The first bytes of a text without UTF-8's mark. Raises ``ValueError`` for UTF-16."""
    if start.startswith(_BYTE_ORDERS):
        raise ValueError("it is UTF-16, not UTF-8: convert it")
    return start.removeprefix(_UTF8_MARK)


def _check_start(start: bytes) -> None:
    for sign, codec in _SIGNS.items():
        if start.startswith(sign):
            raise ValueError(
                f"it is compressed with {codec}, which its name does not say: rename it if that is"
                f" one of {_ADMITTED}, or decompress it"
            )
