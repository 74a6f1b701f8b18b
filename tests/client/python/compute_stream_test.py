"""client/python/compute_stream.py against a server and numpy."""

import threading

import grpc
import numpy as np
import pytest

import example
import server_process
from attention.v1 import attention_pb2 as pb
from attention.v1 import attention_pb2_grpc
from call_errors import CallError
from compute_stream import ComputeStream


def tensors(random, queries, keys):
  return [random.standard_normal((1, tokens, heads, 16), dtype=np.float32)
          for tokens, heads in ((queries, 4), (keys, 2), (keys, 2))]


def check(inputs, answer):
  expected, expected_lse = example.reference(*inputs)
  output = np.frombuffer(answer.output, np.float32).reshape(expected.shape)
  np.testing.assert_allclose(output, expected, rtol=0, atol=1e-5)
  lse = np.frombuffer(answer.log_sum_exp, np.float32)
  np.testing.assert_allclose(lse.reshape(expected_lse.shape), expected_lse,
                             rtol=0, atol=2e-4)


def request_of(inputs):
  return example.make_request(*inputs, pb.DATA_TYPE_FLOAT32)


def test_every_request_gets_its_own_answer(stub):
  random = np.random.default_rng()
  sent = []
  with ComputeStream(stub) as stream:
    for i in range(200):
      inputs = tensors(random, 1 + i % 5, 6 + i % 40)
      sent.append((inputs, stream.send(request_of(inputs))))
  for inputs, answer in sent:
    assert answer.done()
    check(inputs, answer.result())


def test_threads_share_a_stream(stub):
  def work(stream, seed):
    random = np.random.default_rng(seed)
    for i in range(30):
      inputs = tensors(random, 1 + i % 3, 5)
      check(inputs, stream.send(request_of(inputs)).result())
      done.append(seed)

  done = []
  with ComputeStream(stub) as stream:
    threads = [threading.Thread(target=work, args=(stream, seed))
               for seed in range(4)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
  assert len(done) == 120


def test_an_error_of_a_request_leaves_the_others_alone(stub):
  inputs = tensors(np.random.default_rng(), 2, 3)
  wrong = request_of(inputs)
  wrong.key = wrong.key[:-1]
  with ComputeStream(stub) as stream:
    answers = [stream.send(r) for r in (request_of(inputs), wrong,
                                        request_of(inputs))]
  with pytest.raises(CallError) as raised:
    answers[1].result()
  assert raised.value.code == grpc.StatusCode.INVALID_ARGUMENT
  assert raised.value.reason == "INVALID_REQUEST"
  assert "key" in str(raised.value)
  for answer in (answers[0], answers[2]):
    check(inputs, answer.result())
  with pytest.raises(CallError) as raised:
    stream.send(request_of(inputs)).result()
  assert raised.value.code == grpc.StatusCode.CANCELLED


@pytest.mark.skipif(not server_process.have_real_server(),
                    reason="attention-server is not built")
def test_a_stream_that_breaks():
  inputs = tensors(np.random.default_rng(), 2, 3)
  with (server_process.real() as server,
        grpc.insecure_channel(server.address) as channel):
    stream = ComputeStream(attention_pb2_grpc.AttentionServiceStub(channel))
    check(inputs, stream.send(request_of(inputs)).result())
    server.kill()
    with pytest.raises(CallError) as raised:
      stream.send(request_of(inputs)).result()
    assert raised.value.code == grpc.StatusCode.UNAVAILABLE
    stream.close()
