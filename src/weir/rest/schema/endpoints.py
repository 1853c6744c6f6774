"""Every endpoint of the REST API."""

from weir.rest.schema.checkpoints import ENDPOINTS as CHECKPOINTS
from weir.rest.schema.cluster import ENDPOINTS as CLUSTER
from weir.rest.schema.jobs import ENDPOINTS as JOBS
from weir.rest.schema.metrics import ENDPOINTS as METRICS
from weir.rest.schema.page import ENDPOINTS as PAGE
from weir.rest.schema.vertices import ENDPOINTS as VERTICES

#: A fixed path comes before a path with a parameter.
ENDPOINTS = (*METRICS, *JOBS, *CHECKPOINTS, *VERTICES, *CLUSTER, *PAGE)
