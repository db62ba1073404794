"""Run every example, each in a process of its own: ``make examples``.

They record into a store in a temporary folder, which is removed, unless VRAMSCOPE_DB names another.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
VRAMSCOPE = Path(sys.executable).with_name("vramscope")
COMMANDS = {
    "plain_loop.py": [sys.executable, "plain_loop.py"],
    "accumulate_autocast.py": [sys.executable, "accumulate_autocast.py"],
    "with_accelerate.py": [sys.executable, "with_accelerate.py"],
    "unchanged_script.py": [VRAMSCOPE, "run", "unchanged_script.py", "--steps", "20"],
}


def main() -> int:
    unknown = {file.name for file in HERE.glob("*.py")} - COMMANDS.keys() - {"run_all.py"}
    failed = [f"{name} is not in run_all.py" for name in sorted(unknown)]
    with tempfile.TemporaryDirectory() as folder:
        environment = {"VRAMSCOPE_DB": f"sqlite:///{folder}/examples.db", **os.environ}
        for name, command in COMMANDS.items():
            started = time.monotonic()
            status = subprocess.run(command, cwd=HERE, env=environment).returncode
            print(f"-- {name}: status {status}, {time.monotonic() - started:.1f} s", flush=True)
            if status != 0:
                failed.append(f"{name} ended with status {status}")
    for line in failed:
        print(line, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
