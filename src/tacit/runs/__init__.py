"""From a configuration file to the folder of a finished run."""

from tacit.runs.build import make_session
from tacit.runs.config import Config, read_config
from tacit.runs.runner import Outcome, Run, prepare

__all__ = ["Config", "Outcome", "Run", "make_session", "prepare", "read_config"]
