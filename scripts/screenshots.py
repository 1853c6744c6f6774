"""Makes the screenshots of the web page: ``python -m scripts.screenshots [DIRECTORY]``.

Every view of a job of five and of forty vertices, and those of a history server, wide and narrow,
light and dark, go to the directory (default: ``build/screenshots``). Those that ``docs/PAGE.md``
shows are written to ``docs/``. With ``--address URL`` they are of the job that runs there. Needs
Chromium.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path

from playwright.sync_api import Browser
from tests.kit.browser import chromium
from tests.kit.stored_jobs import DAMAGED, FAILED, FS, leave_jobs
from tests.rest.page_job import page_gateway

from weir.rest.past.history import StoredJobs
from weir.rest.server.server import RestServer
from weir.runtime.concurrency import SystemClock

ROOT = Path(__file__).resolve().parent.parent
#: Width and height by name.
SIZES = {"wide": (1280, 900), "narrow": (390, 844)}
#: What docs/ shows: the view, the size and the scheme of each file.
SHOWN = {
    "page-timeline.png": ("timeline", "wide", "light"),
    "page-overview.png": ("overview", "narrow", "dark"),
}


def views(vertex: str, checkpoint: int) -> dict[str, str]:
    """The address of each view, with the chosen vertex and checkpoint."""
    names = ("overview", "graph", "timeline", "checkpoints", "exceptions", "logs", "coordinators")
    chosen = {"vertex": f"graph/{vertex}", "checkpoint": f"checkpoints/{checkpoint}"}
    return {**{name: name for name in (*names, "configuration")}, **chosen}


def history_views() -> dict[str, str]:
    """The address of each view of a history server."""
    names = ("overview", "graph", "checkpoints", "exceptions", "coordinators", "logs")
    of_job = {name: f"jobs/{FAILED}/{name}" for name in names}
    return {
        "jobs": "",
        **of_job,
        "vertex": f"jobs/{FAILED}/graph/per_minute",
        "checkpoint": f"jobs/{FAILED}/checkpoints/3",
        "damaged": f"jobs/{DAMAGED}/overview",
    }


def take(browser: Browser, address: str, addresses: Mapping[str, str], directory: Path) -> None:
    """Take every view in every size and scheme."""
    directory.mkdir(parents=True, exist_ok=True)
    for size, (width, height) in SIZES.items():
        for scheme in ("light", "dark"):
            context = browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme="light" if scheme == "light" else "dark",
            )
            page = context.new_page()
            for name, view in addresses.items():
                page.goto(f"{address}/#/{view}")
                page.locator("main h1").wait_for()
                page.locator("main .loading").first.wait_for(state="detached")
                full = directory / f"{name}-{size}-{scheme}.png"
                page.screenshot(path=full, full_page=True)
                for file, shown in SHOWN.items():
                    if shown == (name, size, scheme):
                        page.screenshot(path=directory / file)
            context.close()


def main() -> None:
    """Take the screenshots that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path, nargs="?", default=ROOT / "build" / "screenshots")
    parser.add_argument("--address", help="of a running job, instead of made-up ones")
    parser.add_argument("--vertex", default="audit", help="the vertex to choose there")
    parser.add_argument("--checkpoint", type=int, default=1, help="the checkpoint to choose there")
    arguments = parser.parse_args()
    with chromium() as browser:
        if arguments.address:
            chosen = views(arguments.vertex, arguments.checkpoint)
            take(browser, arguments.address, chosen, arguments.directory)
            return
        for many in (5, 40):
            server = RestServer(port=0)
            gateway = page_gateway(many)
            address = server.start(gateway)
            vertex = gateway.current.vertices[3].vertex
            take(browser, address, views(vertex, 40), arguments.directory / str(many))
            server.stop()
        with tempfile.TemporaryDirectory() as root:
            jobs = StoredJobs(str(leave_jobs(Path(root))), lambda _: FS, SystemClock())
            server = RestServer(port=0)
            address = server.start_history(jobs)
            take(browser, address, history_views(), arguments.directory / "history")
            server.stop()
    for file in SHOWN:
        (ROOT / "docs" / file).write_bytes((arguments.directory / "5" / file).read_bytes())


if __name__ == "__main__":
    main()
