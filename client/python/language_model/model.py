"""A decoder of the Qwen3 kind in numpy, without its attention."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Shape:
  """Sizes of a model; the default has 0.9 million weights."""
  vocabulary: int = 256  # bytes
  layer_count: int = 4
  width: int = 128
  query_head_count: int = 8
  kv_head_count: int = 4
  head_dim: int = 32  # even
  mlp_width: int = 384
  rope_base: float = 10000.0


class Model:
  """Weights in fp32, and how tokens become logits.

  Each layer is RMSNorm, attention with grouped query heads, normalised queries
  and keys and rotary positions, RMSNorm, and SwiGLU. The embedding is the output
  matrix too. Weights are random: what the model writes means nothing, but depends
  on every token before.
  """

  def __init__(self, shape=Shape(), seed=1):
    random = np.random.default_rng(seed)

    def weight(rows, columns, scale=1.0):
      return random.standard_normal((rows, columns), np.float32) * np.float32(
          scale / np.sqrt(rows))

    def gain(size, mean=1.0):
      return np.float32(mean) + random.standard_normal(
          size, np.float32) * np.float32(0.1)

    self.shape = shape
    # Small beside what layers add, or each token would predict itself.
    self._embedding = weight(shape.width, shape.vocabulary).T.copy()
    query_width = shape.query_head_count * shape.head_dim
    kv_width = shape.kv_head_count * shape.head_dim
    self._layers = [{
        "input_gain": gain(shape.width),
        "query": weight(shape.width, query_width),
        "key": weight(shape.width, kv_width),
        "value": weight(shape.width, kv_width),
        # Peaked attention: a mean over all tokens would be the same for all.
        "query_gain": gain(shape.head_dim, 2.0),
        "key_gain": gain(shape.head_dim, 2.0),
        # Later layers add less, so that earlier ones can guess what comes out.
        "output": weight(query_width, shape.width, 0.3**layer),
        "mlp_gain": gain(shape.width),
        "gate": weight(shape.width, shape.mlp_width),
        "up": weight(shape.width, shape.mlp_width),
        "down": weight(shape.mlp_width, shape.width, 0.3**layer),
    } for layer in range(shape.layer_count)]
    self._output_gain = gain(shape.width)

  def steps(self, tokens, positions, layer_count=None):
    """Computes logits; whoever runs this generator attends.

    For each layer it yields (layer, queries [T, query heads, dim], keys and values
    [T, K/V heads, dim]) and wants the output [T, query heads, dim] sent back. So
    one model serves attention of any kind: alone or of many sequences at once,
    with or without waiting.

    Args:
      tokens, positions: T integers each. Sequences may lie one after the other.
      layer_count: how many layers to run; all, unless it is to guess.

    Returns:
      Logits [T, vocabulary].
    """
    s = self.shape
    count = len(tokens)
    rotation = _rotation(np.asarray(positions), s.head_dim, s.rope_base)
    x = self._embedding[list(tokens)]
    for layer, w in enumerate(self._layers[:layer_count]):
      h = _rms_norm(x, w["input_gain"])
      q, k, v = ((h @ w[name]).reshape(count, -1, s.head_dim)
                 for name in ("query", "key", "value"))
      q = _rotate(_rms_norm(q, w["query_gain"]), rotation)
      k = _rotate(_rms_norm(k, w["key_gain"]), rotation)
      attention = yield layer, q, k, v
      x = x + attention.reshape(count, -1) @ w["output"]
      h = _rms_norm(x, w["mlp_gain"])
      gate = h @ w["gate"]
      x = x + (gate / (1 + np.exp(-gate)) * (h @ w["up"])) @ w["down"]
    return _rms_norm(x, self._output_gain) @ self._embedding.T


def _rms_norm(x, gain):
  return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6) * gain


def _rotation(positions, dim, base):
  """Cosines and sines [T, 1, dim / 2] of the angles at the positions."""
  frequencies = base ** (-np.arange(0, dim, 2) / dim)
  angles = positions[:, np.newaxis, np.newaxis] * frequencies
  return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _rotate(x, rotation):
  """Rotates dimension i with i + dim / 2; x is [T, heads, dim]."""
  cosine, sine = rotation
  a, b = np.split(x, 2, axis=-1)
  return np.concatenate([a * cosine - b * sine, b * cosine + a * sine], axis=-1)
