"""Run every example, each in processes of its own: ``make examples``.

They record into a store in a temporary folder, which is removed, unless VRAMSCOPE_DB names another.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
PYTHON = sys.executable
RUN = (Path(PYTHON).with_name("vramscope"), "run")
RANKS = (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
COMMANDS = {
    "plain_loop.py": [(PYTHON,)],
    "accumulate_autocast.py": [(PYTHON,)],
    "unchanged_script.py": [RUN, (*RANKS, "--no-python", *RUN)],
    "with_ddp.py": [RANKS],
    "with_fsdp.py": [RANKS],
    "with_tensor_parallel.py": [RANKS],
    "with_pipeline.py": [RANKS],
    "with_deepspeed.py": [RANKS],
    "with_accelerate.py": [RANKS],
    "with_trainer.py": [RANKS],
    "with_lightning.py": [(PYTHON,)],
}
MORE = {
    "with_deepspeed.py": [["--stage", "1"], ["--stage", "2", "--offload"], ["--stage", "3"]],
    "with_accelerate.py": [[], ["--zero", "2"]],
}


def main() -> int:
    unknown = {file.name for file in HERE.glob("*.py")} - COMMANDS.keys() - {"run_all.py"}
    failed = [f"{name} is not in run_all.py" for name in sorted(unknown)]
    with tempfile.TemporaryDirectory() as folder:
        environment = {"VRAMSCOPE_DB": f"sqlite:///{folder}/examples.db", **os.environ}
        if torch.cuda.device_count() < 2:  # two ranks need two GPUs, or none
            environment["CUDA_VISIBLE_DEVICES"] = ""
        for name, launchers in COMMANDS.items():
            started = time.monotonic()
            commands = [[*way, name, *more] for way in launchers for more in MORE.get(name, [[]])]
            codes = [subprocess.run(c, cwd=HERE, env=environment).returncode for c in commands]
            status = next((code for code in codes if code), 0)
            print(f"-- {name}: status {status}, {time.monotonic() - started:.1f} s", flush=True)
            if status != 0:
                failed.append(f"{name} ended with status {status}")
    for line in failed:
        print(line, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
