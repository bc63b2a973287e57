"""What an evaluation counts: records of batches, sums of bounded size, and the summary of both."""

from acclimate.measures.accumulator import Measures, check_labels
from acclimate.measures.groups import Group, Probe
from acclimate.measures.pixels import PixelMeasures
from acclimate.measures.record import Record
from acclimate.measures.result import Result, pool
from acclimate.measures.tally import Metric, Tally, pack_measures, unpack_measures

__all__ = [
    "Group",
    "Measures",
    "Metric",
    "PixelMeasures",
    "Probe",
    "Record",
    "Result",
    "Tally",
    "check_labels",
    "pack_measures",
    "pool",
    "unpack_measures",
]
