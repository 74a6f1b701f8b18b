#!/usr/bin/env python3
"""Times gpu_bench and PyTorch's scaled_dot_product_attention in one run.

    gpu_compare_torch.py --bench build/release/bin/gpu_bench [CASE...]

Cases are written as for gpu_bench. PyTorch runs each backend that accepts the
case, on random data in the same [batch, token, head, dim] layout, rotating
through as much memory, and is timed the same way: the median of rounds between
two events. Prints TFLOP/s and our rate divided by each backend's.
"""

import argparse
import json
import math
import statistics
import subprocess
import tempfile
import warnings

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
WORKING_SET_BYTES = 400e6
MAX_SETS = 64
MIN_ROUNDS = 11
# The math backend holds M x N scores of every head.
MAX_MATH_BYTES = 8e9

DEFAULT_CASES = (
    [f"type=bf16,b={16384 // s},hq={2048 // d},m={s},d={d},mask={mask}"
     for d in (64, 128, 256) for s in (512, 1024, 4096, 16384)
     for mask in ("none", "bottom_right")]
    + [f"type=bf16,b=4,hq=16,m=4096,d={d}" for d in (40, 80, 96, 192)]
    + ["type=bf16,b=4,hq=16,hkv=8,m=4096,d=128,mask=bottom_right",
       "type=fp16,b=4,hq=16,m=4096,d=128",
       "type=bf16,b=16,hq=16,hkv=8,m=1,n=4096,d=128"]
    + [f"type=fp32,precision={p},b=4,hq={2048 // d},m=4096,d={d}"
       for p in ("ieee", "tf32") for d in (64, 128, 256)]
)


def parse_case(text):
    c = {"type": "bf16", "b": 1, "hq": 16, "m": 1024, "d": 128, "mask": "none",
         "precision": "ieee", "algorithm": "streaming"}
    for item in text.split(","):
        key, value = item.split("=")
        c[key] = int(value) if value.isdigit() else value
    c.setdefault("n", c["m"])
    c.setdefault("hkv", c["hq"])
    c.setdefault("dv", c["d"])
    return c


def make_inputs(c):
    """Query, key and value as [batch, head, token, dim] views."""
    shapes = ((c["m"], c["hq"], c["d"]), (c["n"], c["hkv"], c["d"]),
              (c["n"], c["hkv"], c["dv"]))
    return [torch.randn(c["b"], *s, device="cuda", dtype=DTYPES[c["type"]])
            .transpose(1, 2) for s in shapes]


def working_bytes(c):
    elements = c["b"] * (c["d"] + c["dv"]) * (c["m"] * c["hq"] + c["n"] * c["hkv"])
    return elements * (4 if c["type"] == "fp32" else 2)


def median_ms(c, backend, min_ms, min_calls=1):
    """Milliseconds per call, or None where the backend refuses the case.

    A round is `min_calls` or more, one behind the other.
    """
    causal = c["mask"] != "none"
    if causal and c["m"] != c["n"]:
        return None  # is_causal means top left; not the same computation
    if backend == "math" and 4 * c["b"] * c["hq"] * c["m"] * c["n"] > MAX_MATH_BYTES:
        return None
    torch.backends.cuda.matmul.allow_tf32 = c["precision"] == "tf32"
    sets = [make_inputs(c) for _ in range(
        max(2, min(MAX_SETS, math.ceil(WORKING_SET_BYTES / working_bytes(c)))))]
    calls = sets * math.ceil(min_calls / len(sets))

    def call_all():
        for q, k, v in calls:
            scaled_dot_product_attention(q, k, v, is_causal=causal,
                                         enable_gqa=c["hq"] != c["hkv"])

    try:
        with sdpa_kernel(BACKENDS[backend]):
            call_all()
            torch.cuda.synchronize()
            rounds, total = [], 0.0
            start = torch.cuda.Event(enable_timing=True)
            stop = torch.cuda.Event(enable_timing=True)
            while len(rounds) < MIN_ROUNDS or total < min_ms:
                start.record()
                call_all()
                stop.record()
                stop.synchronize()
                elapsed = start.elapsed_time(stop)
                total += elapsed
                rounds.append(elapsed / len(calls))
            return statistics.median(rounds)
    except RuntimeError:
        return None
    finally:
        del sets, calls
        torch.cuda.empty_cache()


def time_ours(description, program, backends, cases):
    """Parses the command line and times our benchmark program.

    Returns the arguments, `backends` as a list, and a result per case.
    """
    warnings.filterwarnings("ignore")  # reasons why a backend refuses a case
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--bench", required=True, help=f"the {program} binary")
    parser.add_argument("--min_ms", type=float, default=200,
                        help="least time measured per case and backend")
    parser.add_argument("--backends", default=backends)
    parser.add_argument("cases", nargs="*", default=cases)
    arguments = parser.parse_args()
    arguments.backends = arguments.backends.split(",")

    with tempfile.NamedTemporaryFile("r") as results:
        subprocess.run([arguments.bench, f"--json={results.name}",
                        f"--min_ms={arguments.min_ms}", *arguments.cases],
                       check=True, stdout=subprocess.DEVNULL)
        ours = [json.loads(line) for line in results]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    return arguments, ours


def main():
    arguments, ours = time_ours(__doc__, "gpu_bench",
                                "flash,cudnn,efficient,math", DEFAULT_CASES)
    backends = arguments.backends
    print("TFLOP/s (ours / backend)")
    print(f"{'case':<64}{'ours':>8}" + "".join(f"{b:>16}" for b in backends))
    for text, mine in zip(arguments.cases, ours):
        c = parse_case(text)
        line = f"{text:<64}{mine['tflops']:>8.1f}"
        for backend in backends:
            ms = median_ms(c, backend, arguments.min_ms)
            line += (f"{'-':>16}" if ms is None else
                     f"{mine['tflops'] * mine['ms'] / ms:>9.1f} ({ms / mine['ms']:.2f})")
        print(line, flush=True)


if __name__ == "__main__":
    main()
