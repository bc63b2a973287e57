"""Records of batches, sums of bounded size, and the summary of both."""

from acclimate.metrics.batch import METRICS, BatchMetrics, MetricInfo
from acclimate.metrics.collector import Collector, Metric, pack_sums, unpack_sums
from acclimate.metrics.groups import Group, Probe
from acclimate.metrics.pixels import PixelSums
from acclimate.metrics.record import Record
from acclimate.metrics.result import Result, pool
from acclimate.metrics.sums import Sums, check_labels
from acclimate.metrics.writer import MetricsWriter

__all__ = [
    "METRICS",
    "BatchMetrics",
    "Collector",
    "Group",
    "Metric",
    "MetricInfo",
    "MetricsWriter",
    "PixelSums",
    "Probe",
    "Record",
    "Result",
    "Sums",
    "check_labels",
    "pack_sums",
    "pool",
    "unpack_sums",
]
