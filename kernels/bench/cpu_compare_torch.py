#!/usr/bin/env python3
"""Times the CPU kernels beside PyTorch's scaled_dot_product_attention.

For every shape of cpu_bench, runs the two one after the other on the same
number of threads and prints a Markdown table of medians:

  cpu_compare_torch.py --bench build/release/bin/cpu_bench --threads 16

PyTorch gets contiguous [batch, head, token, dim] tensors, which it prefers;
the kernels get [batch, token, head, dim], as the service receives them. FLOPs
count visible pairs only, 2 per multiply-add.
"""

import argparse
import json
import re
import statistics
import subprocess
import time

import torch
from torch.nn.functional import scaled_dot_product_attention

NAME = re.compile(
    r"(?P<type>fp32|fp16|bf16|fp8)/B(?P<batch>\d+)/M(?P<queries>\d+)"
    r"/N(?P<keys>\d+)/q(?P<query_heads>\d+)/kv(?P<kv_heads>\d+)/d(?P<dim>\d+)"
    r"/(?P<mask>full|causal)/(?P<algorithm>streaming|three_step)")
REPETITIONS = 5
# PyTorch has no fp8 attention; bf16 of the same shape is the next best.
TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16,
         "fp8": torch.bfloat16}


def run_bench(args, name):
    """Median seconds per call and FLOP/s of one cpu_bench benchmark."""
    report = subprocess.run(
        [args.bench,
         f"--threads={args.threads}",
         f"--benchmark_filter=^{name}/",
         f"--benchmark_min_time={args.seconds / REPETITIONS}",
         f"--benchmark_repetitions={REPETITIONS}",
         "--benchmark_report_aggregates_only=true",
         "--benchmark_format=json"],
        check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    for row in json.loads(report.stdout)["benchmarks"]:
        if row.get("aggregate_name") == "median":
            return row["real_time"] * 1e-3, row["FLOP/s"]
    raise ValueError(f"{args.bench} reported no median for {name}")


def run_torch(args, shape):
    """Median seconds per call of PyTorch on one shape."""
    number = {key: int(shape[key]) for key in
              ("batch", "queries", "keys", "query_heads", "kv_heads", "dim")}
    kind = {"dtype": TYPES[shape["type"]]}
    query = torch.randn(number["batch"], number["query_heads"],
                        number["queries"], number["dim"], **kind)
    key, value = (torch.randn(number["batch"], number["kv_heads"],
                              number["keys"], number["dim"], **kind)
                  for _ in range(2))
    options = {"is_causal": shape["mask"] == "causal",
               "enable_gqa": number["query_heads"] != number["kv_heads"]}
    times = []
    with torch.inference_mode():
        for _ in range(3):
            scaled_dot_product_attention(query, key, value, **options)
        end = time.perf_counter() + args.seconds
        while time.perf_counter() < end or len(times) < 5:
            start = time.perf_counter()
            scaled_dot_product_attention(query, key, value, **options)
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", required=True, help="the cpu_bench program")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--filter", default="", help="regular expression")
    parser.add_argument("--seconds", type=float, default=1.0,
                        help="measured per shape and implementation")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    listing = subprocess.run(
        [args.bench, "--benchmark_list_tests"], check=True, text=True,
        stdout=subprocess.PIPE).stdout
    print(f"torch {torch.__version__}, {args.threads} threads\n")
    print("| shape | ms | GFLOP/s | torch ms | torch GFLOP/s | ratio |")
    print("|---|---|---|---|---|---|")
    for line in listing.split():
        match = NAME.match(line)
        if match is None or not re.search(args.filter, line):
            continue
        seconds, rate = run_bench(args, match.group(0))
        torch_seconds = run_torch(args, match)
        torch_rate = rate * seconds / torch_seconds
        print(f"| {match.group(0)} | {seconds * 1e3:.3f} | {rate * 1e-9:.1f} "
              f"| {torch_seconds * 1e3:.3f} | {torch_rate * 1e-9:.1f} "
              f"| {rate / torch_rate:.2f} |", flush=True)


if __name__ == "__main__":
    main()
