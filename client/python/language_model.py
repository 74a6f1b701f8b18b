#!/usr/bin/python3
"""A language model whose attention runs on a server, against the same one alone.

    client/python/generate.sh build/python
    PYTHONPATH=build/python client/python/language_model.py --server localhost:50051

The model is a small decoder of the Qwen3 kind (RMSNorm, rotary positions, grouped
query heads with normalised queries and keys, SwiGLU) over bytes, with random
weights: what it writes is gibberish, but the same gibberish wherever
its attention runs. Everything but attention is numpy here; keys and values of the
context stay on the server. It

* reads a prompt (append, then attend with all its queries),
* writes greedily, a token at a time (Decode),
* goes on in two ways from one prompt (ForkSession; one Decode serves both),
* writes with a draft model's guesses, several tokens at a time, and takes back
  those that it would not have written (TruncateSession).

The exit code is 0 when all texts are those of the model without a server.
"""

import argparse
import sys

import grpc
import numpy as np

from attention.v1 import attention_pb2 as pb
from attention.v1 import attention_pb2_grpc
from example import UNLIMITED
from sessions import Session, SessionError, decode

VOCABULARY = 256  # bytes
WIDTH = 64
LAYERS = 4
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 16
MLP_WIDTH = 160
ROPE_BASE = 10000.0

PROMPT = b"Attention is all that this server computes: "


class Model:
  """Weights, and all of the computation but attention."""

  def __init__(self, seed):
    random = np.random.default_rng(seed)

    def weight(rows, columns):
      return random.standard_normal((rows, columns), np.float32) / np.float32(
          np.sqrt(rows))

    self.embedding = random.standard_normal((VOCABULARY, WIDTH), np.float32)
    self.head = weight(WIDTH, VOCABULARY)
    self.layers = [{
        "query": weight(WIDTH, HEADS * HEAD_DIM),
        "key": weight(WIDTH, KV_HEADS * HEAD_DIM),
        "value": weight(WIDTH, KV_HEADS * HEAD_DIM),
        "output": weight(HEADS * HEAD_DIM, WIDTH),
        "gate": weight(WIDTH, MLP_WIDTH),
        "up": weight(WIDTH, MLP_WIDTH),
        "down": weight(MLP_WIDTH, WIDTH),
    } for _ in range(LAYERS)]

  def perturbed(self, seed, amount):
    """A model that mostly, but not always, writes the same."""
    other = Model(seed)
    other.embedding, other.head = self.embedding, self.head
    for mine, noise in zip(self.layers, other.layers):
      for name in mine:
        noise[name] = mine[name] + np.float32(amount) * noise[name]
    return other

  def forward(self, engine, steps):
    """Logits after each token of (context, tokens) steps, which it appends."""
    contexts = [context for context, _ in steps]
    counts = [len(tokens) for _, tokens in steps]
    positions = np.concatenate(
        [np.arange(context.length, context.length + count)
         for context, count in zip(contexts, counts)])
    x = self.embedding[np.concatenate([list(tokens) for _, tokens in steps])]
    for i, layer in enumerate(self.layers):
      h = rms_norm(x)
      q = (h @ layer["query"]).reshape(-1, HEADS, HEAD_DIM)
      k = (h @ layer["key"]).reshape(-1, KV_HEADS, HEAD_DIM)
      v = (h @ layer["value"]).reshape(-1, KV_HEADS, HEAD_DIM)
      q, k = rotated(rms_norm(q), positions), rotated(rms_norm(k), positions)
      o = engine.attend(i, contexts, counts, q, k, v)
      x = x + o.reshape(len(x), -1) @ layer["output"]
      h = rms_norm(x)
      gate = h @ layer["gate"]
      x = x + (gate / (1 + np.exp(-gate)) * (h @ layer["up"])) @ layer["down"]
    for context, count in zip(contexts, counts):
      context.length += count
    logits = rms_norm(x) @ self.head
    return np.split(logits, np.cumsum(counts)[:-1])


def rms_norm(x):
  return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(1e-6))


def rotated(x, positions):
  """Rotary positions: x is [T, heads, dim], whose halves are the pairs."""
  half = x.shape[-1] // 2
  frequencies = ROPE_BASE ** (-np.arange(half) / half)
  angles = (positions[:, np.newaxis] * frequencies)[:, np.newaxis]
  cos, sin = np.float32(np.cos(angles)), np.float32(np.sin(angles))
  a, b = x[..., :half], x[..., half:]
  return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


class LocalContext:
  """Keys and values in this process."""

  def __init__(self):
    self.length = 0
    self.layers = [[np.zeros((0, KV_HEADS, HEAD_DIM), np.float32)] * 2
                   for _ in range(LAYERS)]


class LocalEngine:
  """Attention in this process."""

  def new_context(self):
    return LocalContext()

  def attend(self, layer, contexts, counts, q, k, v):
    ends = np.cumsum(counts)
    outputs = []
    for context, begin, end in zip(contexts, ends - counts, ends):
      context.layers[layer] = [
          np.concatenate([old, new[begin:end]])
          for old, new in zip(context.layers[layer], (k, v))]
      outputs.append(causal_attention(q[begin:end], *context.layers[layer]))
    return np.concatenate(outputs)

  def fork(self, context):
    fork = LocalContext()
    fork.length = context.length
    fork.layers = [list(layer) for layer in context.layers]
    return fork

  def truncate(self, context, length):
    context.length = length
    context.layers = [[x[:length] for x in layer] for layer in context.layers]

  def close(self, context):
    pass


def causal_attention(q, k, v):
  """Of the last tokens of a context: q [M, H, D]; k, v [N, H_kv, D]."""
  m, n = len(q), len(k)
  k, v = (np.repeat(x, HEADS // KV_HEADS, axis=1) for x in (k, v))
  scores = np.einsum("mhd,nhd->hmn", q, k) / np.float32(np.sqrt(HEAD_DIM))
  scores[:, np.arange(n) > np.arange(m)[:, np.newaxis] + n - m] = -np.inf
  weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
  weights /= weights.sum(axis=-1, keepdims=True)
  return np.einsum("hmn,nhd->mhd", weights, v)


class ServerContext:
  """Keys and values in a session."""

  def __init__(self, session, length=0):
    self.session = session
    self.length = length


class ServerEngine:
  """Attention on a server."""

  def __init__(self, stub):
    self.stub = stub

  def new_context(self):
    return ServerContext(Session.create(self.stub, pb.SessionConfiguration(
        data_type=pb.DATA_TYPE_FLOAT32, query_head_count=HEADS,
        kv_head_count=KV_HEADS, head_dim_qk=HEAD_DIM, head_dim_v=HEAD_DIM,
        layer_count=LAYERS)))

  def attend(self, layer, contexts, counts, q, k, v):
    if contexts[0].length == 0 and len(contexts) == 1:
      # A prompt. Its keys and values could be streamed while it is computed.
      contexts[0].session.append(layer, k, v)
      return contexts[0].session.attend(layer, q)[0]
    step = decode(self.stub, [(context.session, layer, count)
                              for context, count in zip(contexts, counts)],
                  q, k, v)
    for error in step.errors:
      if error is not None:
        raise error
    return step.output

  def fork(self, context):
    return ServerContext(context.session.fork(), context.length)

  def truncate(self, context, length):
    context.session.truncate(length)
    context.length = length

  def close(self, context):
    context.session.delete()


def write_greedily(model, engine, contexts, tokens, count):
  """Goes on from each context with its token; returns the texts."""
  texts = [[token] for token in tokens]
  while len(texts[0]) < count:
    logits = model.forward(engine, [(context, text[-1:])
                                    for context, text in zip(contexts, texts)])
    for text, last in zip(texts, logits):
      text.append(int(np.argmax(last[-1])))
  return [bytes(text) for text in texts]


def write_speculatively(model, draft, engine, prompt, count, guess_count=4):
  """As greedily, with a draft's guesses; also how many were right and wrong."""
  context, draft_context = engine.new_context(), LocalContext()
  draft_engine = LocalEngine()
  text = [int(np.argmax(model.forward(engine, [(context, prompt)])[0][-1]))]
  draft.forward(draft_engine, [(draft_context, prompt)])
  accepted = rejected = 0
  while len(text) < count:
    guesses = text[-1:]
    for _ in range(guess_count):
      logits = draft.forward(draft_engine, [(draft_context, guesses[-1:])])
      guesses.append(int(np.argmax(logits[0][-1])))
    # All at once: the last token that is certain, and the guesses after it.
    length = context.length
    logits = model.forward(engine, [(context, guesses[:-1])])[0]
    written = [int(token) for token in np.argmax(logits, axis=-1)]
    right = 0
    while right + 1 < guess_count and guesses[right + 1] == written[right]:
      right += 1
    text += written[:right + 1]
    accepted += right
    rejected += guess_count - 1 - right
    # Both have seen one certain token and the right guesses.
    engine.truncate(context, length + right + 1)
    draft_engine.truncate(draft_context, length + right + 1)
  engine.close(context)
  return bytes(text[:count]), accepted, rejected


def write_all(engine, count):
  """All that the model writes with an engine: texts by what they are."""
  model = Model(seed=1)
  prompt = engine.new_context()
  logits = model.forward(engine, [(prompt, PROMPT)])[0][-1]
  best, second = (int(token) for token in np.argsort(-logits, kind="stable")[:2])
  contexts = [engine.fork(prompt), engine.fork(prompt)]
  texts = {}
  texts["the likeliest"], texts["the second"] = write_greedily(
      model, engine, contexts, [best, second], count)
  texts["greedy"], = write_greedily(model, engine, [prompt], [best], count)
  for context in [prompt, *contexts]:
    engine.close(context)
  texts["speculative"], accepted, rejected = write_speculatively(
      model, model.perturbed(seed=2, amount=0.05), engine, PROMPT, count)
  return texts, accepted, rejected


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--server", default="localhost:50051")
  parser.add_argument("--tokens", type=int, default=48, help="to write")
  args = parser.parse_args()
  expected, _, _ = write_all(LocalEngine(), args.tokens)
  with grpc.insecure_channel(args.server, options=UNLIMITED) as channel:
    stub = attention_pb2_grpc.AttentionServiceStub(channel)
    try:
      texts, accepted, rejected = write_all(ServerEngine(stub), args.tokens)
    except SessionError as error:
      print(error, file=sys.stderr)
      return 1
  good = True
  for name, text in texts.items():
    same = text == expected[name]
    good = good and same
    print(f"{name}: {text!r}: {'good' if same else 'WRONG'}")
  good = good and texts["speculative"] == texts["greedy"]
  print(f"guesses of the draft: {accepted} right, {rejected} wrong")
  return 0 if good else 1


if __name__ == "__main__":
  sys.exit(main())
