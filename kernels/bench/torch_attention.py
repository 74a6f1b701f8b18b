"""PyTorch's scaled_dot_product_attention, timed as gpu_bench times ours.

Random data in the same [batch, token, head, dim] layout, rotating through as
much memory; the median of rounds between two events.
"""

import math
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
# PyTorch has no fp8 attention; bf16 of the same shape is the next best.
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16,
          "fp8": torch.bfloat16}
WORKING_SET_BYTES = 400e6
MAX_SETS = 64
MIN_ROUNDS = 11
# The math backend holds M x N scores of every head.
MAX_MATH_BYTES = 8e9


def parse_case(text):
    c = {"type": "bf16", "b": 1, "hq": 16, "m": 1024, "d": 128, "mask": "none",
         "precision": "ieee", "algorithm": "streaming", "lengths": "equal"}
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


class TorchCase:
    """A case with its inputs on the GPU, to be timed repeatedly."""

    def __init__(self, c, min_calls=1):
        """A round is `min_calls` or more, one behind the other."""
        self._case = c
        sets = [make_inputs(c) for _ in range(
            max(2, min(MAX_SETS, math.ceil(WORKING_SET_BYTES / working_bytes(c)))))]
        self._calls = sets * math.ceil(min_calls / len(sets))

    def _refuses(self, backend):
        c = self._case
        return (c["lengths"] != "equal"
                # is_causal means top left, which is another computation.
                or (c["mask"] != "none" and c["m"] != c["n"])
                or (backend == "math"
                    and 4 * c["b"] * c["hq"] * c["m"] * c["n"] > MAX_MATH_BYTES))

    def _call_all(self):
        c = self._case
        for q, k, v in self._calls:
            scaled_dot_product_attention(q, k, v, is_causal=c["mask"] != "none",
                                         enable_gqa=c["hq"] != c["hkv"])

    def median_ms(self, backend, min_ms):
        """Milliseconds per call, or None where the backend refuses the case."""
        if self._refuses(backend):
            return None
        torch.backends.cuda.matmul.allow_tf32 = self._case["precision"] == "tf32"
        try:
            with sdpa_kernel(BACKENDS[backend]):
                self._call_all()
                torch.cuda.synchronize()
                rounds, total = [], 0.0
                start = torch.cuda.Event(enable_timing=True)
                stop = torch.cuda.Event(enable_timing=True)
                while len(rounds) < MIN_ROUNDS or total < min_ms:
                    start.record()
                    self._call_all()
                    stop.record()
                    stop.synchronize()
                    elapsed = start.elapsed_time(stop)
                    total += elapsed
                    rounds.append(elapsed / len(self._calls))
                return statistics.median(rounds)
        except RuntimeError:
            return None


def median_ms(c, backend, min_ms, min_calls=1):
    """As TorchCase, for a case that is timed once."""
    case = TorchCase(c, min_calls)
    try:
        return case.median_ms(backend, min_ms)
    finally:
        del case
        torch.cuda.empty_cache()
