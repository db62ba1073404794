"""Closed formulas for what training will hold. Torch-free: importing it loads no torch.

>>> from vramscope.profiler.analytic import Scenario, predict, read_scenario_file
"""

from .adapters import LoraSpec
from .architectures import DecoderArchitecture, from_hf_config, inventory_of
from .estimate import Prediction, predict
from .inference import InferenceSpec
from .inventory import TensorBlock, TensorInventory, TensorSpec, fold, parameters_of
from .offload import Offload
from .optimizers import OptimizerSpec
from .readers.files import read_scenario_file, read_scenario_files, scenario_of_hf_config
from .readers.settings import Known
from .scenario import BatchShape, LossSpec, Scenario, scenario_schema
from .sharding import Parallelism

__all__ = [
    "BatchShape",
    "DecoderArchitecture",
    "InferenceSpec",
    "Known",
    "LoraSpec",
    "LossSpec",
    "Offload",
    "OptimizerSpec",
    "Parallelism",
    "Prediction",
    "Scenario",
    "TensorBlock",
    "TensorInventory",
    "TensorSpec",
    "fold",
    "from_hf_config",
    "inventory_of",
    "parameters_of",
    "predict",
    "read_scenario_file",
    "read_scenario_files",
    "scenario_of_hf_config",
    "scenario_schema",
]
