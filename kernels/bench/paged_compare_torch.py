#!/usr/bin/env python3
"""Times paged_bench and PyTorch's scaled_dot_product_attention in one run.

    paged_compare_torch.py --bench build/release/bin/paged_bench [CASE...]

Cases are written as for paged_bench. PyTorch, which has no pages and no ragged
batches here, computes the same shapes on contiguous tensors with each backend
that accepts them; see torch_attention.py for how. Each case is timed with both
split policies. Prints GB/s of keys and values, and after those of each backend
our rates, fixed and balanced, divided by it.
"""

import argparse
import json
import subprocess
import tempfile
import warnings

import torch

from torch_attention import median_ms, parse_case

MIN_CALLS = 8  # as paged_bench
SHAPES = ("b=1,n=4096", "b=1,n=32768", "b=16,n=4096", "b=64,n=4096",
          "b=64,n=16384")
DEFAULT_CASES = (
    [f"type=bf16,{shape},hq=16,hkv=8,d=128" for shape in SHAPES]
    + ["type=bf16,b=64,n=8192,hq=64,hkv=8,d=128",
       "type=bf16,b=64,n=1024,long=131072,hq=16,hkv=8,d=128",
       "type=bf16,b=64,n=4096,lengths=lognormal,hq=16,hkv=8,d=128"]
    + [f"type=bf16,b=64,n=4096,hq=16,hkv=8,d=128,page={page}"
       for page in (16, 32, 128, 256, 4096)]
    + ["type=bf16,b=64,n=4096,hq=16,hkv=8,d=128,m=4",
       "type=bf16,b=64,n=4096,hq=16,hkv=8,d=128,m=64",
       "type=bf16,b=64,n=4096,hq=16,hkv=8,d=64",
       "type=bf16,b=64,n=4096,hq=16,hkv=8,d=256",
       "type=bf16,b=64,n=4096,hq=16,hkv=8,d=128,kv=fp8",
       "type=fp32,b=64,n=4096,hq=16,hkv=8,d=128"])


def torch_case(text):
    """The case as torch_attention knows it; None for what it cannot do."""
    c = parse_case("m=1," + text)
    if "long" in c or c["lengths"] != "equal" or c.get("kv") == "fp8" or c["m"] > 1:
        return None
    return c


def time_ours(bench, min_ms, cases):
    """A result of paged_bench per case."""
    with tempfile.NamedTemporaryFile("r") as results:
        subprocess.run([bench, f"--json={results.name}", f"--min_ms={min_ms}",
                        *cases], check=True, stdout=subprocess.DEVNULL)
        return [json.loads(line) for line in results]


def main():
    warnings.filterwarnings("ignore")  # reasons why a backend refuses a case
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, help="the paged_bench binary")
    parser.add_argument("--min_ms", type=float, default=200,
                        help="least time measured per case and backend")
    parser.add_argument("--backends", default="cudnn,flash")
    parser.add_argument("cases", nargs="*", default=DEFAULT_CASES)
    arguments = parser.parse_args()
    backends = arguments.backends.split(",")

    policies = [[f"{case},split={policy}" for case in arguments.cases]
                for policy in ("fixed", "balanced")]
    ours = zip(*(time_ours(arguments.bench, arguments.min_ms, cases)
                 for cases in policies))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print("GB/s of keys and values, of ours by split policy (each / backend)")
    print(f"{'case':<58}{'fixed us':>9}{'GB/s':>6}{'balanced us':>12}{'GB/s':>6}"
          + "".join(f"{b:>20}" for b in backends))
    for text, mine in zip(arguments.cases, ours):
        line = f"{text:<58}" + "".join(
            f"{m['ms'] * 1e3:>{width}.1f}{m['gbytes_per_second']:>6.0f}"
            for m, width in zip(mine, (9, 12)))
        c = torch_case(text)
        bytes_read = mine[0]["gbytes_per_second"] * mine[0]["ms"]
        for backend in backends:
            ms = (None if c is None else
                  median_ms(c, backend, arguments.min_ms, MIN_CALLS))
            line += (f"{'-':>20}" if ms is None else
                     f"{bytes_read / ms:>7.0f} " + "({:.2f}, {:.2f})".format(
                         *(ms / m["ms"] for m in mine)))
        print(line, flush=True)


if __name__ == "__main__":
    main()
