"""Scripts that are killed, resumed and drained write what they write as a batch computation.

Each is the shape of a script that people have published, from Spark's own examples to books. The
driver is killed twice, at moments that a seed chooses: with half of the input there, and again in
the run that goes on, after the other half has come. Then the same command goes on. All run with
``make test-slow``; one runs with every change, and is killed once.
"""

from __future__ import annotations

import random

import pytest
from tests.kit.adopted_script import AdoptedScript, Console, Files, land
from tests.kit.place import Place

pytestmark = [pytest.mark.spark, pytest.mark.kill]

_Checks = tuple[Files | Console, ...]

#: By script, what is compared. A function's own writes may come twice after a kill.
SCRIPTS: dict[str, _Checks] = {
    "word_count.py": (Console(column="word", complete=True),),
    "windowed_word_count.py": (Console(column="word", complete=True),),
    "kafka_word_count.py": (Console(column="word", complete=True),),
    "sessions_by_hand.py": (Console(column="sessionId", keys=("sessionId",)),),
    "json_files.py": (Files(path="flattened"),),
    "two_queries.py": (Files(path="notifications"), Files(path="flattened")),
    "watermarked_windows.py": (Console(column="total", keys=("start",)),),
    "stream_table_join.py": (Files(path="logins", doubled=True),),
    "stream_stream_join.py": (Files(path="joined"),),
    "outer_join.py": (Files(path="joined"),),
    "two_aggregations.py": (
        Console(column="total_votes", keys=("candidate",)),
        Console(column="state", keys=("state",)),
    ),
    "errors_swallowed.py": (Files(path="keyspace/created_users"),),
    "three_sinks.py": (
        Console(column="ride"),
        Console(column="count", complete=True),
        Console(column="rides", keys=("vendor", "since")),
    ),
    "three_topics.py": (
        Files(path="listen_events"),
        Files(path="page_view_events"),
        Files(path="auth_events"),
    ),
    "batch_function.py": (
        Files(path="device_data", doubled=True),
        Files(path="device_table", doubled=True),
    ),
    "batch_errors.py": (Files(path="good", doubled=True), Files(path="errors", doubled=True)),
    "state_function.py": (Console(column="total", keys=("type",)),),
    "deduplicated.py": (Files(path="logins"),),
    "state_processor.py": (Console(column="n", keys=("word",)),),
    "notebook.py": (Files(path="words"),),
    "four_tables.py": (
        Files(path="silver/votes"),
        Files(path="silver/trades"),
        Files(path="silver/purchases"),
        Files(path="silver/timed"),
    ),
    "dead_letters.py": (Files(path="bronze/user_events"), Files(path="dead_letters")),
    "by_argument.py": (Files(path="signed", doubled=True),),
    "enriched_in_sql.py": (Files(path="silver", doubled=True),),
    "quality_metrics.py": (Files(path="valid"), Files(path="metrics")),
    "settings_upsert.py": (Files(path="logins", doubled=True),),
}
#: Run with every change, and killed once there: several queries of one reading.
_FAST = "two_queries.py"
#: What the moments of the kills are drawn from, for each script others.
_SEED = 1
#: A driver is killed after at most so many checkpoints, and so many seconds later.
_CHECKPOINTS_MAX = 4
_LATER_MAX_S = 1.0


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_writes_what_it_writes_as_a_batch_computation(place: Place, script: str) -> None:
    """Killed twice, each time resumed by the same command, and drained."""
    check_after_kills(place, script, kills=2)


def test_queries_of_one_reading_write_what_they_write_as_batch_computations(place: Place) -> None:
    """Killed with half of the input, resumed by the same command with the rest, and drained, with a
    savepoint beside the checkpoints."""
    check_after_kills(place, _FAST, kills=1)
    assert list(place.directory.glob("out/chk-point-dir/_weir/savepoints/savepoint-*"))


def check_after_kills(place: Place, script: str, *, kills: int) -> None:
    """Run a script through kills to its end, and compare."""
    chance = random.Random(f"{_SEED} {script}")
    adopted = AdoptedScript(place, script)
    for kill in range(kills):
        land(adopted.world, kill)
        # The first has something to resume from; the second may come while the job resumes.
        adopted.kill(
            after_checkpoints=chance.randint(1 - kill, _CHECKPOINTS_MAX),
            later_s=chance.uniform(0, _LATER_MAX_S),
        )
    if kills == 1:
        land(adopted.world, 1)
    adopted.drain()
    made, expected = adopted.output(), adopted.expected()
    for check in SCRIPTS[script]:
        check.check(made, expected)
