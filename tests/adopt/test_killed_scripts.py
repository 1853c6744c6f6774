"""Scripts that are killed, resumed and drained write what they write as a batch computation.

Each is the shape of a script that people have published, from Spark's own examples to books. The
driver is killed after some checkpoints, with half of the input read; then the other half comes, and
the same command goes on. All run with ``make test-slow``, one with every change.
"""

from __future__ import annotations

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
#: Run with every change: several queries of one reading.
_FAST = ("two_queries.py",)


@pytest.mark.parametrize(
    "script",
    [pytest.param(name, marks=() if name in _FAST else pytest.mark.slow) for name in SCRIPTS],
)
def test_a_script_writes_what_it_writes_as_a_batch_computation(place: Place, script: str) -> None:
    """Killed with half of the input, resumed by the same command with the rest, and drained."""
    adopted = AdoptedScript(place, script)
    land(adopted.world, 0)
    adopted.kill_after_checkpoints(3)
    land(adopted.world, 1)
    adopted.drain()
    made, expected = adopted.output(), adopted.expected()
    for check in SCRIPTS[script]:
        check.check(made, expected)
