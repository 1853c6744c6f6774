"""The class archive: its name, who makes it when, and that the JVM uses or ignores it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from weir.errors import UnsupportedEnvironmentError
from weir.spark.session import class_archive
from weir.spark.session.class_archive import JvmProfile

#: A program that starts a session with the given options and prints nothing.
SESSION = """
import sys
from weir.spark.session.start import create_session
session = create_session(
    name="warm", master="local[1]", conf={}, parallelism=1, fast_working_directory=True,
    log_file=sys.argv[1], java_options=sys.argv[2],
)
assert session.range(3).count() == 3
session.stop()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java, a Spark and a cache directory for the test, and the path of their archive."""
    for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS"):
        monkeypatch.delenv(name, raising=False)
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch()
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="21.0.2"\n')
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    (jars / "spark-core_2.13-4.2.7.jar").write_text("core")
    monkeypatch.setattr(class_archive, "check_environment", lambda: None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return class_archive.location()


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Training that takes no time; returns the names that were written to."""
    calls: list[Path] = []

    def train(made: Path) -> None:
        calls.append(made)
        made.write_text(f"archive {len(calls)}")

    monkeypatch.setattr(class_archive, "_train", train)
    return calls


def test_the_name_says_what_the_archive_fits(place: Path, tmp_path: Path) -> None:
    """Versions are readable; another Java, jar or training program changes the name."""
    assert place.parent == tmp_path / "cache" / "weir"
    assert re.fullmatch(r"spark-4\.2\.7-java-21\.0\.2-[0-9a-f]{16}", place.name)
    assert class_archive.location() == place
    (tmp_path / "spark" / "jars" / "more.jar").touch()
    with_more = class_archive.location()
    assert with_more != place
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="21.0.3"\n')
    assert class_archive.location() not in (place, with_more)


def test_the_archive_is_used_once_it_is_there_and_whole(place: Path, trained: list[Path]) -> None:
    """Without an archive there are no options; a truncated archive does not count."""
    assert (class_archive.find(), class_archive.java_options(), class_archive.is_settled()) == (
        None,
        JvmProfile.LASTING.value,
        False,
    )
    made = class_archive.make()
    assert (made.parent, class_archive.find(), class_archive.is_settled()) == (
        place.parent,
        made,
        True,
    )
    assert f'"-XX:SharedArchiveFile={made}"' in class_archive.java_options()
    assert class_archive.java_options(archive=False) == JvmProfile.LASTING.value
    made.write_text("arch")
    assert (class_archive.find(), class_archive.is_settled()) == (None, False)


@pytest.mark.parametrize(
    "theirs", ["-XX:SharedArchiveFile=/x.jsa", "-Xshare:off", "-XX:ArchiveClassesAtExit=y"]
)
def test_an_archive_of_the_user_is_left_alone(
    place: Path, trained: list[Path], theirs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is set in the session's options or in the environment."""
    class_archive.make()
    assert class_archive.java_options(f"-Da=b {theirs}") == JvmProfile.LASTING.value
    monkeypatch.setenv("JDK_JAVA_OPTIONS", theirs)
    assert class_archive.java_options() == JvmProfile.LASTING.value


def test_a_collector_of_the_user_is_left_alone(place: Path) -> None:
    """Java does not start with two of them."""
    brief = JvmProfile.BRIEF
    assert class_archive.java_options(profile=brief) == "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    assert class_archive.java_options("-XX:+UseG1GC", profile=brief) == "-XX:TieredStopAtLevel=1"


def test_making_is_skipped_when_it_is_there_and_forced_on_request(
    place: Path, trained: list[Path]
) -> None:
    """The old archive is deleted, and so are the leftovers of a killed process."""
    place.parent.mkdir(parents=True)
    left = place.with_name(f"{place.name}.1.tmp")
    left.touch()
    first = class_archive.make()
    assert class_archive.make() == first
    assert len(trained) == 1
    first.rename(first.with_name(f"{place.name}-1.jsa"))
    second = class_archive.make(force=True)
    assert sorted(place.parent.iterdir()) == sorted([second, place.with_name(f"{place.name}.lock")])


def test_two_that_make_it_at_once_make_one(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits for the first and uses its archive."""
    calls = []

    def train(made: Path) -> None:
        calls.append(made)
        time.sleep(0.2)
        made.write_text("archive")

    monkeypatch.setattr(class_archive, "_train", train)
    threads = [threading.Thread(target=class_archive.make) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1


def test_what_cannot_be_made_is_not_tried_again_at_once(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure leaves a note instead of an archive; it is retried after a week."""

    def fail(made: Path) -> None:
        made.write_text("half")
        raise UnsupportedEnvironmentError("no luck")

    monkeypatch.setattr(class_archive, "_train", fail)
    with pytest.raises(UnsupportedEnvironmentError, match="no luck"):
        class_archive.make()
    failure = place.with_name(f"{place.name}.failed")
    assert sorted(path.suffix for path in place.parent.iterdir()) == [".failed", ".lock"]
    assert (class_archive.find(), class_archive.is_settled()) == (None, True)
    os.utime(failure, (time.time() - 8 * 86_400,) * 2)
    assert not class_archive.is_settled()


def test_a_cache_directory_that_cannot_be_used_is_named(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who requested it gets one sentence; all others run without an archive."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert class_archive.find() is None
    with pytest.raises(UnsupportedEnvironmentError, match="XDG_CACHE_HOME"):
        class_archive.make()


def test_archives_that_nobody_uses_go(place: Path, trained: list[Path]) -> None:
    """Those unused for weeks, and the oldest of many."""
    place.parent.mkdir(parents=True)
    others = [place.with_name(f"spark-{number}-1.jsa") for number in range(9)]
    for number, path in enumerate(others):
        path.touch()
        os.utime(path, (time.time() - number * 86_400 * 1.6,) * 2)
    others[1].touch()
    made = class_archive.make()
    assert sorted(place.parent.glob("*.jsa")) == sorted([*others[:7], made])
    os.utime(others[3], (time.time() - 15 * 86_400,) * 2)
    class_archive.make(force=True)
    assert not others[3].exists()


def test_nothing_is_made_later_where_it_is_not_wanted(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in tests, not if an archive exists, and not without Java."""
    started: list[object] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *given, **_: started.append(given))
    monkeypatch.setenv(class_archive.NO_WARMUP, "1")
    class_archive.make_later()
    assert started == []
    monkeypatch.delenv(class_archive.NO_WARMUP)
    class_archive.make_later()
    assert len(started) == 1
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    class_archive.make_later()
    assert len(started) == 1


@pytest.mark.spark
@pytest.mark.slow
def test_the_jvm_takes_its_classes_from_the_archive(tmp_path: Path) -> None:
    """Java's log of loaded classes says where each came from."""
    class_archive.make()
    loaded = tmp_path / "loaded"
    options = (
        f"{class_archive.java_options(profile=JvmProfile.BRIEF)}"
        f" -Xlog:class+load=info:file={loaded}"
    )
    assert "SharedArchiveFile" in options
    assert _session(tmp_path, options) == ""
    from_archive = loaded.read_text().count("source: shared objects file (top)")
    assert from_archive > 5_000
    assert from_archive > loaded.read_text().count("/jars/")


@pytest.mark.spark
@pytest.mark.slow
def test_an_archive_that_does_not_fit_is_skipped_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session starts and prints nothing that it would not print without an archive."""
    monkeypatch.setattr(class_archive, "find", lambda: tmp_path / "damaged.jsa")
    (tmp_path / "damaged.jsa").write_bytes(os.urandom(100_000))
    options = class_archive.java_options(profile=JvmProfile.BRIEF)
    assert "damaged.jsa" in options
    assert _session(tmp_path, options) == ""


def _session(directory: Path, options: str) -> str:
    """Start a session in another process; return its output besides Spark's usual line."""
    done = subprocess.run(
        [sys.executable, "-c", SESSION, str(directory / "spark.log"), options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = (done.stdout + done.stderr).splitlines()
    return "\n".join(
        line for line in printed if line != "WARNING: Using incubator modules: jdk.incubator.vector"
    )
