"""Writes texts with attention on a server, and compares with this process.

    client/python/generate.sh build/python
    PYTHONPATH=build/python:client/python python3 -m language_model \\
      --server localhost:50051

Reads a prompt (append and attend), writes (Decode), goes on in two ways from one
prompt (ForkSession), does that over a stream too (StreamDecode), and lets the
first layers guess what the whole model would write (TruncateSession). The exit
code is 0 when all texts are those of the same model without a server.
"""

import argparse
import sys
import time

import grpc
import numpy as np

from attention.v1 import attention_pb2_grpc
from example import UNLIMITED
from session_errors import SessionError

from .generation import prefill, write, write_pipelined, write_speculatively
from .local_attention import LocalAttention
from .model import Model
from .server_attention import ServerAttention


def write_all(model, attention, prompt, count):
  """Writes in every way.

  Returns:
    {way: (texts, tokens per second)}, and the Speculation.
  """
  results = {}

  def timed(way, work):
    begin = time.perf_counter()
    texts = work()
    tokens = sum(len(text) for text in texts)
    results[way] = texts, tokens / (time.perf_counter() - begin)

  context = attention.create()
  logits = prefill(model, attention, context, prompt)
  best, second = np.argsort(-logits, kind="stable")[:2]
  forks = [context.fork() for _ in range(5)]
  timed("one text", lambda: write(model, attention, forks[:1], [best], count))
  timed("two texts", lambda: write(model, attention, forks[1:3], [best, second],
                                   count))
  if isinstance(attention, ServerAttention):
    timed("two texts, pipelined", lambda: write_pipelined(
        model, attention, forks[3:], [best, second], count))
  begin = time.perf_counter()
  speculation = write_speculatively(model, attention, context, best, count)
  results["one text, guessed"] = (
      [speculation.tokens], count / (time.perf_counter() - begin))
  for each in [context, *forks]:
    each.delete()
  return results, speculation


def main():
  parser = argparse.ArgumentParser(
      prog="language_model", description=__doc__.splitlines()[0])
  parser.add_argument("--server", default="localhost:50051")
  parser.add_argument("--prompt", default="Attention is all that is computed: ")
  parser.add_argument("--tokens", type=int, default=64, help="to write")
  parser.add_argument("--seed", type=int, default=1, help="of the weights")
  args = parser.parse_args()
  model, prompt = Model(seed=args.seed), args.prompt.encode()
  alone, _ = write_all(model, LocalAttention(model.shape), prompt, args.tokens)
  with grpc.insecure_channel(args.server, options=UNLIMITED) as channel:
    stub = attention_pb2_grpc.AttentionServiceStub(channel)
    try:
      results, speculation = write_all(
          model, ServerAttention(stub, model.shape), prompt, args.tokens)
    except SessionError as error:
      print(error, file=sys.stderr)
      return 1
  for text in results["two texts"][0]:
    print(bytes(text))
  good = True
  for way, (texts, rate) in results.items():
    expected, rate_alone = alone.get(way) or (alone["two texts"][0], None)
    same = texts == expected
    good = good and same
    print(f"{way}: {rate:.0f} tokens/s" +
          (f", {rate_alone:.0f} in this process" if rate_alone else "") +
          f": {'good' if same else 'WRONG'}")
  print(f"of the guesses {speculation.accepted} were right, "
        f"{speculation.rejected} wrong")
  return 0 if good else 1


if __name__ == "__main__":
  sys.exit(main())
