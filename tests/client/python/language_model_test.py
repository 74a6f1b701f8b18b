"""client/python/language_model: the same texts on a server as in the process."""

import subprocess
import sys

import numpy as np
import pytest

from language_model.generation import (prefill, write, write_pipelined,
                                       write_speculatively)
from language_model.local_attention import LocalAttention
from language_model.model import Model
from language_model.server_attention import ServerAttention

# The seed is fixed: with other weights two tokens may be so nearly equally
# likely that rounding decides. Of the texts here none are.
MODEL = Model(seed=1)
PROMPT = b"Attention is all that is computed: "
COUNT = 48


class Written:
  """What attention of some kind makes of the prompt."""

  def __init__(self, attention):
    self.attention = attention
    self.prompt = attention.create()
    self.logits = prefill(MODEL, attention, self.prompt, PROMPT)
    self.likeliest = [int(i) for i in np.argsort(-self.logits)[:3]]

  def texts(self, first_tokens, how=write):
    """Goes on in forks of the prompt, one for each first token."""
    forks = [self.prompt.fork() for _ in first_tokens]
    texts = how(MODEL, self.attention, forks, first_tokens, COUNT)
    counts = [fork.token_counts for fork in forks]
    assert counts == [[len(PROMPT) + COUNT] * MODEL.shape.layer_count
                     ] * len(forks)
    for fork in forks:
      fork.delete()
    return texts


@pytest.fixture(scope="module")
def alone():
  return Written(LocalAttention(MODEL.shape))


@pytest.fixture(params=[False, True], ids=["unary", "stream"])
def served(request, stub):
  return Written(ServerAttention(stub, MODEL.shape,
                                 stream_prompts=request.param))


def test_a_text_depends_on_all_before_it(alone):
  """Or equal texts would say little about attention."""
  text, = alone.texts(alone.likeliest[:1])
  assert len(set(text)) > COUNT // 3
  other = alone.attention.create()
  prefill(MODEL, alone.attention, other, b"a" + PROMPT[1:])
  other_text, = write(MODEL, alone.attention, [other], text[:1], COUNT)
  assert other_text != text


def test_plain_text(alone, served):
  np.testing.assert_allclose(served.logits, alone.logits, rtol=0, atol=1e-4)
  assert served.likeliest == alone.likeliest
  first = alone.likeliest[:1]
  assert served.texts(first) == alone.texts(first)


def test_continuations_of_one_prompt(alone, served):
  texts = served.texts(alone.likeliest)
  assert texts == alone.texts(alone.likeliest)
  assert len(set(map(tuple, texts))) == 3
  # The prompt is as it was.
  assert list(served.prompt.refresh().layer_token_counts) == [
      len(PROMPT)] * MODEL.shape.layer_count
  assert served.texts(alone.likeliest[:1]) == texts[:1]


def test_contexts_of_several_lengths(alone, stub):
  served = ServerAttention(stub, MODEL.shape)
  prompts = [PROMPT[:n] for n in (1, 17, 34)]
  texts = []
  for attention in (alone.attention, served):
    contexts = [attention.create() for _ in prompts]
    first = [int(np.argmax(prefill(MODEL, attention, context, prompt)))
             for context, prompt in zip(contexts, prompts)]
    texts.append(write(MODEL, attention, contexts, first, COUNT))
  assert texts[1] == texts[0]


def test_steps_that_do_not_wait(alone, served):
  assert served.texts(alone.likeliest, write_pipelined) == alone.texts(
      alone.likeliest)


@pytest.mark.parametrize("guess_count", [1, 4])
def test_guesses(alone, served, guess_count):
  first = alone.likeliest[:1]
  context = served.prompt.fork()
  speculation = write_speculatively(MODEL, served.attention, context, *first,
                                    COUNT, guess_count)
  assert [speculation.tokens] == alone.texts(first)
  assert speculation.accepted > 0
  assert speculation.rejected > 0
  # All but the last token that is certain, whichever were guessed.
  counts = set(context.refresh().layer_token_counts)
  assert len(counts) == 1
  assert counts.pop() >= len(PROMPT) + COUNT - 1


def test_the_program(server):
  def run(*flags):
    return subprocess.run([sys.executable, "-m", "language_model", *flags],
                          capture_output=True, text=True, timeout=120)
  result = run("--server", server.address, "--tokens=20")
  assert result.returncode == 0, result.stdout + result.stderr
  assert result.stdout.count(": good") == 4
  result = run("--server=unix:/nowhere", "--tokens=2")
  assert result.returncode == 1
  assert "UNAVAILABLE" in result.stderr
