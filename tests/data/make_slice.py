#!/usr/bin/python3
"""Cuts a small sample out of a file of attention activations.

    make_slice.py activations.safetensors slice.safetensors

Takes the first key/value head, its query heads and the first 128 tokens of
q, k and v (bf16, [1, heads, tokens, dim], causal), and computes the output and
the log-sum-exp anew in float64 with NumPy, independently of this project's
kernels. Needs NumPy only.
"""

import json
import struct
import sys

import numpy as np

TOKENS = 128


def read(path):
    with open(path, "rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(header_bytes))
        data = file.read()
    tensors = {}
    for name in ("q", "k", "v"):
        entry = header[name]
        if entry["dtype"] != "BF16":
            raise SystemExit(f"{name} must be BF16; got {entry['dtype']}")
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(data[begin:end], "<u2").reshape(
            entry["shape"])
    return header["__metadata__"], tensors


def bfloat16_to_float64(bits):
    return (bits.astype("<u4") << 16).view("<f4").astype(np.float64)


def attention(q, k, v, scale):
    """Causal attention of one head, [tokens, dim] each, in float64."""
    scores = scale * (q @ k.T)
    scores[np.triu_indices(len(q), 1)] = -np.inf
    top = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - top)
    sums = weights.sum(axis=1, keepdims=True)
    return weights @ v / sums, (top + np.log(sums))[:, 0]


def write(path, tensors, metadata):
    header = {"__metadata__": metadata}
    offset = 0
    for name, (dtype, array) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(array.shape),
                        "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())


def main():
    source, target = sys.argv[1:]
    metadata, tensors = read(source)
    group = tensors["q"].shape[1] // tensors["k"].shape[1]
    q = tensors["q"][:, :group, :TOKENS]
    k = tensors["k"][:, :1, :TOKENS]
    v = tensors["v"][:, :1, :TOKENS]
    scale = float(metadata["scale"])
    heads = [attention(bfloat16_to_float64(q[0, head]),
                       bfloat16_to_float64(k[0, 0]),
                       bfloat16_to_float64(v[0, 0]), scale)
             for head in range(group)]
    output = np.stack([o for o, _ in heads])[None].astype("<f4")
    log_sum_exp = np.stack([lse for _, lse in heads])[None].astype("<f4")
    write(target,
          {"o": ("F32", output), "lse": ("F32", log_sum_exp),
           "q": ("BF16", q), "k": ("BF16", k), "v": ("BF16", v)},
          {"scale": repr(scale), "causal": "true", "layout": "BHSD",
           "o": "float64 attention of the bf16 inputs, rounded to float32",
           "text": metadata.get("text", "")})


if __name__ == "__main__":
    main()
