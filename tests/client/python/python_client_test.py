"""The generated Python stubs and client/python/example.py against servers."""

import os
import subprocess
import sys

import grpc
import numpy as np
import pytest

import example
import server_process
from attention.v1 import attention_pb2 as pb
from attention.v1 import attention_pb2_grpc

PYTHON_CLIENT = os.environ["ATTENTION_PYTHON_CLIENT"]


@pytest.fixture(scope="module", params=["puppet", "real"])
def server(request):
  if request.param == "puppet":
    with server_process.puppet("exact") as process:
      yield process.address
  else:
    if not server_process.have_real_server():
      pytest.skip("attention-server is not built")
    with server_process.real() as process:
      yield process.address


def run_example(server):
  return subprocess.run(
      [sys.executable, os.path.join(PYTHON_CLIENT, "example.py"),
       f"--server={server}"], capture_output=True, text=True, timeout=120)


def test_the_example_passes(server):
  result = run_example(server)
  assert result.returncode == 0, result.stdout + result.stderr
  assert "fp32: output (2, 200, 8, 64)" in result.stdout
  assert "bf16: output (2, 200, 8, 64)" in result.stdout
  assert "fp8: output (2, 200, 8, 64)" in result.stdout


def test_the_example_notices_a_wrong_answer():
  with server_process.puppet("wrong") as process:
    result = run_example(process.address)
  assert result.returncode == 1
  assert "WRONG" in result.stdout


def test_the_example_shows_the_servers_error():
  with server_process.puppet("full") as process:
    result = run_example(process.address)
  assert result.returncode == 1
  assert "RESOURCE_EXHAUSTED: the queue is full" in result.stderr


def test_generate_explains_itself():
  result = subprocess.run([os.path.join(PYTHON_CLIENT, "generate.sh")],
                          capture_output=True, text=True)
  assert result.returncode == 2
  assert "usage:" in result.stderr


def test_bf16_rounds_to_nearest_even():
  values = np.array([1.0, -2.5, 1.00390625, 1.01171875, 3e38, 0.0], np.float32)
  bits = example.to_bf16(values)
  assert bits.tolist() == [0x3F80, 0xC020, 0x3F80, 0x3F82, 0x7F62, 0]
  np.testing.assert_allclose(example.from_bf16(bits), values, rtol=2**-8)


def test_large_messages_pass(server):
  """More than 4 MiB both ways: gRPC's default limit."""
  q = np.zeros((1, 1, 8192, 200), np.float32)
  k = np.zeros((1, 1, 8192, 200), np.float32)
  v = np.ones((1, 1, 8192, 200), np.float32)
  request = example.make_request(q, k, v, pb.DATA_TYPE_FLOAT32)
  assert len(request.query) > 4 << 20
  with grpc.insecure_channel(server, options=example.UNLIMITED) as channel:
    stub = attention_pb2_grpc.AttentionServiceStub(channel)
    response = stub.ComputeAttention(request, timeout=60)
  assert response.output == v.tobytes()


def test_server_info(server):
  with grpc.insecure_channel(server) as channel:
    stub = attention_pb2_grpc.AttentionServiceStub(channel)
    info = stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=60)
  assert info.backend == "cpu"
  assert info.devices
