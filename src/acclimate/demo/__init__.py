"""The demonstration: the built-in task under several shifts, with several methods, measured."""

from acclimate.demo.result import DemoResult
from acclimate.demo.run import run_demo
from acclimate.demo.settings import DemoSettings

__all__ = ["DemoResult", "DemoSettings", "run_demo"]
