"""A running gpu_bench, which times one case after the other when asked to.

So that programs in one run can take turns at a GPU: its clocks depend on what
it has just done, and starting a process for each case takes a second.
"""

import json
import subprocess


class GpuBench:
    """with GpuBench("build/release/bin/gpu_bench", 20) as bench: bench.time(case)"""

    def __init__(self, path, min_ms):
        self._process = subprocess.Popen(
            [path, "--interactive", f"--min_ms={min_ms}"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self._process.stdin.close()
        self._process.wait()

    def time(self, case):
        """The result of a case: its "ms", "tflops" and "gbytes_per_second"."""
        self._process.stdin.write(case + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"gpu_bench ended at {case}")
        return json.loads(line)
