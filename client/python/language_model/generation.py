"""Writes texts with a model and attention of any kind, the likeliest token first.

`attention` is a LocalAttention or a ServerAttention, contexts are its own. A
context has the keys and values of a text but for its last token, which is the
next to go through the model.
"""

import concurrent.futures
from typing import List, NamedTuple

import numpy as np


def prefill(model, attention, context, prompt):
  """Reads a prompt into an empty context; returns logits [vocabulary] after it."""
  steps = model.steps(prompt, np.arange(len(prompt)))
  return _run(steps, lambda *qkv: attention.prefill(context, *qkv))[-1]


def write(model, attention, contexts, tokens, count):
  """Goes on with several texts, all in one step per layer.

  Args:
    tokens: the last one of each text, not yet in its context.
    count: how many tokens to write, with these.

  Returns:
    The tokens written, a list for each text, which begins with that of `tokens`.
  """
  texts = []
  for _ in range(count):
    texts.append(list(tokens))
    logits = _decode(model, attention, contexts, [1] * len(contexts), tokens)
    tokens = np.argmax(logits, axis=-1)
  return [[int(token) for token in text] for text in zip(*texts)]


def write_pipelined(model, attention, contexts, tokens, count):
  """As `write`, over a stream, where no text waits for the others.

  Each goes on with its next layer as soon as it has its own answer.
  """
  texts = [_greedy(model, context, int(token), count)
           for context, token in zip(contexts, tokens)]
  written = [None] * len(texts)
  under_way = {}  # future: index of the text

  def go_on(i, attended):
    try:
      layer, *qkv = texts[i].send(attended)
    except StopIteration as end:
      written[i] = end.value
    else:
      under_way[stream.send([(contexts[i], layer, 1)], *qkv)] = i

  with attention.open_stream() as stream:
    for i in range(len(texts)):
      go_on(i, None)
    while under_way:
      answered, _ = concurrent.futures.wait(
          under_way, return_when=concurrent.futures.FIRST_COMPLETED)
      for step in answered:
        go_on(under_way.pop(step), step.result().checked())
  return written


class Speculation(NamedTuple):
  """A text and how it came about.

  Attributes:
    tokens: the text, as from `write`.
    accepted, rejected: guesses that were right and wrong.
  """
  tokens: List[int]
  accepted: int
  rejected: int


def write_speculatively(model, attention, context, token, count, guess_count=4,
                        guessing_layer_count=2):
  """Writes the same text as `write`, with fewer steps of the whole model.

  The first layers alone guess tokens, one after the other; the whole model looks
  at all guesses at once, and keeps those that it would have written. What guessing
  and wrong guesses left in the context is taken back.

  Args:
    token, count: as for `write`, of one text.
    guess_count: tokens to guess before the model looks at them.
    guessing_layer_count: how many layers guess.
  """
  text, accepted, rejected = [int(token)], 0, 0
  while len(text) < count:
    begin = context.token_counts[0]
    guesses = []
    for last in range(guess_count):
      logits = _decode(model, attention, [context], [1],
                       (text[-1:] + guesses)[-1:], guessing_layer_count)
      guesses.append(int(np.argmax(logits[-1])))
    context.truncate(begin)
    logits = _decode(model, attention, [context], [1 + guess_count],
                     text[-1:] + guesses)
    best = [int(token) for token in np.argmax(logits, axis=-1)]
    right = 0
    while right < guess_count and guesses[right] == best[right]:
      right += 1
    if right < guess_count:
      context.truncate(begin + 1 + right)
    text += best[:right + 1]
    accepted += right
    rejected += guess_count - right
  return Speculation(text[:count], accepted, rejected)


def _greedy(model, context, token, count):
  """A generator like Model.steps that writes a whole text, and returns it."""
  text = []
  for _ in range(count):
    text.append(token)
    logits = yield from model.steps([token], [context.token_counts[0]])
    token = int(np.argmax(logits[-1]))
  return text


def _decode(model, attention, contexts, counts, tokens, layer_count=None):
  """Appends tokens to contexts; returns the logits [tokens, vocabulary]."""
  positions = np.concatenate([context.token_counts[0] + np.arange(count)
                              for context, count in zip(contexts, counts)])
  steps = model.steps(tokens, positions, layer_count)
  return _run(steps, lambda *qkv: attention.decode(contexts, counts, *qkv))


def _run(steps, attend):
  """Runs Model.steps; attend(layer, queries, keys, values) gives the output."""
  try:
    request = next(steps)
    while True:
      request = steps.send(attend(*request))
  except StopIteration as end:
    return end.value
