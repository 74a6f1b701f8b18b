#!/usr/bin/env python3
"""Times gpu_bench and PyTorch's scaled_dot_product_attention in one run.

    gpu_compare_torch.py --bench build/release/bin/gpu_bench [GROUP or CASE...]

Groups are named below; cases are written as for gpu_bench. Ours and the
backends take turns at every case, several times: a GPU at its power limit clocks
by what it has just done. Backends compute in bf16 where ours is fp8, which
PyTorch does not have. Prints TFLOP/s (medians of the turns), our rate divided
by each backend's (the median over turns), and for each group the geometric mean
and the lowest of these.
"""

import argparse
import math
import statistics
import warnings

import torch

from gpu_bench_process import GpuBench
from torch_attention import BACKENDS, TorchCase, parse_case

CAUSAL = "mask=bottom_right"


def prefill(dtype):
    """16,384 tokens of 2,048 elements, in sequences of 512 to all."""
    return [f"type={dtype},b={16384 // s},hq={2048 // d},m={s},d={d},mask={mask}"
            for d in (64, 128, 256)
            for s in (512, 1024, 2048, 4096, 8192, 16384)
            for mask in ("none", "bottom_right")]


def ragged(lengths):
    return [f"type=bf16,b=64,hq=16,m=1024,d=128,mask={mask},lengths={lengths}"
            for mask in ("none", "bottom_right")]


GROUPS = {
    "bf16": prefill("bf16"),
    "fp16": prefill("fp16"),
    "qwen3": [f"type={dtype},b={16384 // s},hq=16,hkv=8,m={s},d=128,{CAUSAL}"
              for dtype in ("bf16", "fp16") for s in (1024, 4096, 16384)],
    "dims": [f"type=bf16,b=4,hq=16,m=4096,d={d}" for d in (40, 80, 96, 192)]
            + [f"type=bf16,b=4,hq=16,m=4096,d=192,dv=128,{CAUSAL}"],
    "fp8": prefill("fp8")
           + [f"type=fp8,b={16384 // s},hq=16,hkv=8,m={s},d=128,{CAUSAL}"
              for s in (1024, 4096, 16384)],
    "fp32": [f"type=fp32,precision={p},b=4,hq={2048 // d},m=4096,d={d}"
             for p in ("ieee", "tf32") for d in (64, 128, 256)],
}


class Turns:
    """Takes turns between ours and PyTorch's backends."""

    def __init__(self, bench, backends, arguments):
        self._bench = bench
        self._backends = backends
        self._turns = arguments.turns
        self._min_ms = arguments.min_ms

    def compare(self, text):
        """Our TFLOP/s, and by backend (TFLOP/s, our rate divided by its)."""
        case = TorchCase(parse_case(text))
        ours, theirs = [], {b: [] for b in self._backends}
        for _ in range(self._turns):
            ours.append(self._bench.time(text))
            for backend in list(theirs):
                ms = case.median_ms(backend, self._min_ms)
                if ms is None:
                    del theirs[backend]
                else:
                    theirs[backend].append(ms)
        del case
        torch.cuda.empty_cache()
        flops = ours[0]["tflops"] * ours[0]["ms"]
        return statistics.median(mine["tflops"] for mine in ours), {
            backend: (flops / statistics.median(times),
                      statistics.median(ms / mine["ms"]
                                        for ms, mine in zip(times, ours)))
            for backend, times in theirs.items()}


def run_group(name, cases, turns, backends):
    print(f"\n{name:<64}{'ours':>8}" + "".join(f"{b:>16}" for b in backends))
    ratios = {b: [] for b in backends}
    for text in cases:
        mine, peers = turns.compare(text)
        line = f"{text:<64}{mine:>8.1f}"
        for backend in backends:
            if backend in peers:
                rate, ratio = peers[backend]
                line += f"{rate:>8.1f} ({ratio:.3f})"
                ratios[backend].append((ratio, text))
            else:
                line += f"{'-':>16}"
        print(line, flush=True)
    for backend, all_ratios in ratios.items():
        if all_ratios:
            mean = math.exp(statistics.fmean(math.log(r) for r, _ in all_ratios))
            lowest, where = min(all_ratios)
            print(f"{name} / {backend}: geometric mean {mean:.3f} of "
                  f"{len(all_ratios)}, lowest {lowest:.3f} at {where}", flush=True)


def run_ragged(bench, turns):
    """64 sequences of log-normal lengths, against equal ones of as many FLOPs."""
    print(f"\n{'ragged':<80}{'TFLOP/s':>8}{'equal':>8}{'ratio':>8}")
    for text, even in zip(ragged("lognormal"), ragged("same_flops")):
        pairs = [(bench.time(text), bench.time(even)) for _ in range(turns)]
        rates = [statistics.median(p[i]["tflops"] for p in pairs) for i in (0, 1)]
        ratio = statistics.median(p[0]["tflops"] / p[1]["tflops"] for p in pairs)
        print(f"{text:<80}{rates[0]:>8.1f}{rates[1]:>8.1f}{ratio:>8.3f}", flush=True)


def main():
    warnings.filterwarnings("ignore")  # reasons why a backend refuses a case
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, help="the gpu_bench binary")
    parser.add_argument("--min_ms", type=float, default=20,
                        help="least time measured per turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--backends", default="cudnn",
                        help="comma-separated, of " + ", ".join(BACKENDS))
    parser.add_argument(
        "what", nargs="*", default=["bf16", "fp16", "qwen3", "dims", "ragged"],
        help="cases, and groups: ragged, " + ", ".join(GROUPS))
    arguments = parser.parse_args()
    for name in arguments.what:
        if name != "ragged" and name not in GROUPS and "=" not in name:
            parser.error(f"{name} is neither a group nor a case")
    backends = arguments.backends.split(",")

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; "
          "TFLOP/s (ours / backend)")
    with GpuBench(arguments.bench, arguments.min_ms) as bench:
        turns = Turns(bench, backends, arguments)
        for name in arguments.what:
            if name == "ragged":
                run_ragged(bench, arguments.turns)
            elif name in GROUPS:
                run_group(name, GROUPS[name], turns, backends)
        cases = [name for name in arguments.what if "=" in name]
        if cases:
            run_group("cases", cases, turns, backends)


if __name__ == "__main__":
    main()
