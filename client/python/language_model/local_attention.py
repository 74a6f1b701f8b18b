"""Attention in this process: what the server's is compared with."""

import numpy as np


class LocalContext:
  """Keys and values [tokens, K/V heads, dim] of each layer."""

  def __init__(self, layers):
    self._layers = layers

  @classmethod
  def create(cls, shape):
    """An empty one, for a model of this Shape."""
    empty = np.zeros((0, shape.kv_head_count, shape.head_dim), np.float32)
    return cls([(empty, empty)] * shape.layer_count)

  @property
  def token_counts(self):
    return [len(keys) for keys, _ in self._layers]

  def fork(self):
    return LocalContext(list(self._layers))  # arrays are never written to

  def truncate(self, token_count):
    self._layers = [(keys[:token_count], values[:token_count])
                    for keys, values in self._layers]

  def delete(self):
    self._layers = []

  def step(self, layer, queries, keys, values):
    """Appends, and attends to what is there then; the output [T, heads, dim]."""
    keys, values = (np.concatenate(pair)
                    for pair in zip(self._layers[layer], (keys, values)))
    self._layers[layer] = keys, values
    group = queries.shape[1] // keys.shape[1]  # query heads of a K/V head
    q, k, v = (x.swapaxes(0, 1) for x in (queries, np.repeat(keys, group, axis=1),
                                          np.repeat(values, group, axis=1)))
    scores = q @ k.swapaxes(1, 2) / np.float32(np.sqrt(q.shape[-1]))
    m, n = scores.shape[1:]
    scores[:, np.arange(n) > np.arange(m)[:, np.newaxis] + n - m] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return (weights @ v).swapaxes(0, 1)


class LocalAttention:
  """Contexts in this process; see ServerAttention, which has the same methods."""

  def __init__(self, shape):
    self._shape = shape

  def create(self):
    return LocalContext.create(self._shape)

  def prefill(self, context, layer, queries, keys, values):
    return context.step(layer, queries, keys, values)

  def decode(self, contexts, counts, layer, queries, keys, values):
    ends = np.cumsum(counts)
    return np.concatenate([
        context.step(layer, *(x[end - count:end]
                              for x in (queries, keys, values)))
        for context, count, end in zip(contexts, counts, ends)])
