"""The files of the web page (``page/``): read once, served from memory, each at a fixed path.

HTML, CSS and JavaScript modules as a browser takes them; nothing is built, and nothing is fetched
from elsewhere.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_DIRECTORY = Path(__file__).parent / "page"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def _path_of(name: str) -> str:
    return "/" if name == "index.html" else f"/weir/page/{name}"


#: The files by their path on the server.
_FILES = {_path_of(file.name): file for file in sorted(_DIRECTORY.iterdir()) if file.is_file()}

#: Every path of the page.
PATHS = frozenset(_FILES)


def routes() -> list[Route]:
    """The routes of the page's files."""
    return [_route(path, file) for path, file in _FILES.items()]


def _route(path: str, file: Path) -> Route:
    content = file.read_bytes()
    tag = f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'

    async def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag})
        return Response(content, media_type=_TYPES[file.suffix], headers={"etag": tag})

    return Route(path, answer, methods=["GET", "HEAD"])
