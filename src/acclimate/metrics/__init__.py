"""Records of batches, sums of bounded size, and the summary of both."""

from acclimate.metrics.batch import METRICS, BatchMetrics, MetricInfo, Record
from acclimate.metrics.result import (
    Collector,
    Group,
    Metric,
    Probe,
    Result,
    pack_sums,
    pool,
    unpack_sums,
)
from acclimate.metrics.sums import PixelSums, Sums, check_labels
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
