"""client/python/language_model.py: the same text with a server and without."""

import os
import subprocess
import sys

import grpc
import pytest

import server_process

PYTHON_CLIENT = os.environ["ATTENTION_PYTHON_CLIENT"]


@pytest.fixture(scope="module")
def server():
  if not server_process.have_real_server():
    pytest.skip("attention-server is not built")
  with server_process.real() as process:
    yield process.address


def test_the_example_writes_the_same_with_a_server(stubs, server):
  result = subprocess.run(
      [sys.executable, os.path.join(PYTHON_CLIENT, "language_model.py"),
       f"--server={server}"], capture_output=True, text=True, timeout=240,
      env={**os.environ, "PYTHONPATH": stubs})
  assert result.returncode == 0, result.stdout + result.stderr
  assert result.stdout.count("good") == 4


def test_token_for_token(stubs, server):
  import language_model as lm
  from attention.v1 import attention_pb2_grpc
  from attention.v1 import attention_pb2 as pb
  expected, accepted, rejected = lm.write_all(lm.LocalEngine(), 80)
  # Texts that differ, and a draft that is now right and now wrong.
  assert expected["the likeliest"][0] != expected["the second"][0]
  assert len(set(expected["greedy"])) > 10
  assert expected["speculative"] == expected["greedy"]
  assert accepted > 0
  assert rejected > 0
  with grpc.insecure_channel(server) as channel:
    stub = attention_pb2_grpc.AttentionServiceStub(channel)
    texts = lm.write_all(lm.ServerEngine(stub), 80)
    assert texts == (expected, accepted, rejected)
    assert not stub.ListSessions(pb.ListSessionsRequest()).sessions


def test_attention_matters(stubs):
  """A model that forgets its context writes something else."""
  import language_model as lm

  class Forgetful(lm.LocalEngine):

    def attend(self, layer, contexts, counts, q, k, v):
      for context in contexts:
        context.layers[layer] = [x[:0] for x in context.layers[layer]]
      return super().attend(layer, contexts, counts, q, k, v)

  texts, _, _ = lm.write_all(Forgetful(), 20)
  expected, _, _ = lm.write_all(lm.LocalEngine(), 20)
  assert texts["greedy"] != expected["greedy"]
