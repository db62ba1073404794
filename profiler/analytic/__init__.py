"""Closed formulas for what training will hold. Torch-free: importing it loads no torch.

>>> from vramscope.profiler.analytic import Scenario, predict, read_scenario_file
"""

from .architectures import DecoderArchitecture, from_hf_config, inventory_of
from .estimate import Prediction, predict
from .inventory import TensorBlock, TensorInventory, TensorSpec, fold, parameters_of
from .optimizers import OptimizerSpec
from .scenario import (
    BatchShape,
    LossSpec,
    Scenario,
    read_scenario_file,
    scenario_of_hf_config,
    scenario_schema,
)
from .sharding import Parallelism

__all__ = [
    "BatchShape",
    "DecoderArchitecture",
    "LossSpec",
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
    "scenario_of_hf_config",
    "scenario_schema",
]
