"""Saves and restores gigabytes of tables, beside the speed of the disk: README.md."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from embark_jax.launch.process_group import free_port

HERE = Path(__file__).parent
SIZES = (1, 4, 8)
MESHES = ((1, 1), (2, 1), (8, 1), (2, 2))
"""Devices, and processes that have them."""


def measure(gigabytes: int, devices: int, processes: int, folder: str) -> dict:
    command = [sys.executable, str(HERE / "measure.py"), folder]
    command += ["--gigabytes", str(gigabytes), "--devices", str(devices)]
    command += ["--processes", str(processes)]
    command += ["--coordinator", f"localhost:{free_port()}"]
    children = [
        subprocess.Popen(
            [*command, "--process", str(i)], stdout=subprocess.PIPE, text=True
        )
        for i in range(processes)
    ]
    said = [child.communicate()[0] for child in children]
    assert all(child.returncode == 0 for child in children), said
    found = [json.loads(text.splitlines()[-1]) for text in said]
    merged = found[0]
    for kind, values in merged.items():
        for name in values:
            each = [other[kind][name] for other in found if kind in other]
            # All processes' memory; the time of the last.
            merged[kind][name] = sum(each) if "peak" in name else max(each)
    return {"gigabytes": gigabytes, "processes": processes, **merged.pop(""), **merged}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="on the disk to measure")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--out", type=Path, default=HERE / "results.json")
    options = parser.parse_args()
    cases = []
    for gigabytes in options.sizes:
        for devices, processes in MESHES:
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                load = os.getloadavg()[0]
                case = measure(gigabytes, devices, processes, folder)
            cases.append({"load_before": round(load, 1), **case})
            print(json.dumps(cases[-1]), flush=True)
            options.out.write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
