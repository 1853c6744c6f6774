"""A web service that shows two tables as of the same checkpoint, while a job writes them.

It needs no Spark. Run the job of ``two_tables.py``, and beside it::

    python web_service.py
    curl http://127.0.0.1:8000/

The answer has the newest checkpoint that both tables have, and the tables' totals at it: they are
always those of the same orders. ``?checkpoint=12`` shows an older one.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow.compute as pc

import weir
from weir.errors import WeirError

TABLES = {"orders": "out/orders", "revenue": "out/revenue"}


def totals(checkpoint_id: int | None = None) -> dict[str, Any]:
    """The tables' totals as of one checkpoint."""
    cut = weir.read_consistent(TABLES, checkpoint_id=checkpoint_id)
    orders, revenue = (cut.table(name).to_pyarrow_table() for name in TABLES)
    return {
        "checkpoint": cut.checkpoint_id,
        "orders": orders.num_rows,
        "hours": pc.count_distinct(revenue["start"]).as_py(),
        "revenue of closed hours": pc.sum(revenue["revenue"]).as_py(),
    }


class Handler(BaseHTTPRequestHandler):
    """Answers ``GET /``."""

    def do_GET(self) -> None:
        """Send the totals, or why there are none."""
        asked = parse_qs(urlsplit(self.path).query).get("checkpoint", [])
        try:
            status, answer = 200, totals(int(asked[0]) if asked else None)
        except (ValueError, WeirError) as error:
            status, answer = 404, {"error": str(error)}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print(f"http://127.0.0.1:{server.server_port}/", flush=True)
    server.serve_forever()
