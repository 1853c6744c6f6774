"""Answers that are the same for every job: of what Weir lacks, as an idle Flink cluster answers."""

from __future__ import annotations

from weir.rest.handling.answering import always
from weir.rest.schema import cluster, jobs
from weir.rest.schema.base import Message, Text

always(jobs.ACCUMULATORS, jobs.JobAccumulators())
always(jobs.CLIENT_HEARTBEAT, Message())
always(cluster.DATA_SETS, cluster.DataSets())
always(cluster.DRIVER_LOG_URL, cluster.LogUrl())
always(cluster.DRIVER_STDOUT, Text(""))
always(cluster.RESCALES_CONFIG, cluster.RescalesConfig())
always(cluster.RESCALES_HISTORY, ())
always(cluster.RESCALES_OVERVIEW, cluster.RescalesOverview())
always(cluster.RESCALES_SUMMARY, cluster.RescalesSummary())
always(cluster.RESOURCE_REQUIREMENTS, Message())
always(cluster.TASK_MANAGER_LOG_URL, cluster.LogUrl())
