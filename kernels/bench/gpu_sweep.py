#!/usr/bin/env python3
"""Times gpu_bench over small problems, and reports where a larger one is slower.

    gpu_sweep.py --bench build/release/bin/gpu_bench

Batch, heads and length take all given values. Neighbours differ in one of them,
by one step; a dip is a rate more than 20 % below that of the smaller neighbour,
which a GPU that is no fuller than before should not show. Dips are timed again
before they are reported. Prints TFLOP/s, a row per batch and number of heads.
"""

import argparse
import itertools

from gpu_bench_process import GpuBench


def numbers(text):
    return [int(number) for number in text.split(",")]


def powers(first, last):
    return ",".join(str(1 << i) for i in range(first, last + 1))


def smaller_neighbours(point, axes):
    for axis, values in enumerate(axes):
        index = values.index(point[axis])
        if index > 0:
            yield point[:axis] + (values[index - 1],) + point[axis + 1:]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, help="the gpu_bench binary")
    parser.add_argument("--case", default="type=bf16,d=128,mask=none",
                        help="what all cases have in common")
    parser.add_argument("--batches", type=numbers, default=powers(0, 6))
    parser.add_argument("--heads", type=numbers, default=powers(0, 6))
    parser.add_argument("--lengths", type=numbers, default=powers(6, 14))
    parser.add_argument("--max_tflop", type=float, default=1,
                        help="leaves out cases of more, which fill any GPU")
    parser.add_argument("--dip", type=float, default=0.2)
    parser.add_argument("--min_ms", type=float, default=1)
    arguments = parser.parse_args()
    axes = (arguments.batches, arguments.heads, arguments.lengths)

    def text(point):
        b, h, s = point
        return f"{arguments.case},b={b},hq={h},m={s}"

    def is_small(point):
        b, h, s = point
        return 4e-12 * b * h * s * s * 128 <= arguments.max_tflop

    rates = {}
    with GpuBench(arguments.bench, arguments.min_ms) as bench:
        def time(point):
            return bench.time(text(point))["tflops"]

        def is_dip(point, neighbour):
            return rates[point] < (1 - arguments.dip) * rates[neighbour]

        print(f"{arguments.case}: TFLOP/s by length\n{'batch':>6}{'heads':>6}"
              + "".join(f"{s:>8}" for s in axes[2]))
        for b, h in itertools.product(*axes[:2]):
            line = f"{b:>6}{h:>6}"
            for s in axes[2]:
                point = (b, h, s)
                if is_small(point):
                    rates[point] = time(point)
                    line += f"{rates[point]:>8.1f}"
            print(line, flush=True)

        dips = [(point, neighbour) for point in rates
                for neighbour in smaller_neighbours(point, axes)
                if is_dip(point, neighbour)]
        for point in {point for pair in dips for point in pair}:
            rates[point] = max(rates[point], time(point))
        dips = [pair for pair in dips if is_dip(*pair)]
        for point, neighbour in dips:
            print(f"dip: {text(point)} {rates[point]:.1f} after "
                  f"{text(neighbour)} {rates[neighbour]:.1f} "
                  f"({rates[point] / rates[neighbour]:.2f})")
        print(f"{len(rates)} cases, {len(dips)} dips")


if __name__ == "__main__":
    main()
