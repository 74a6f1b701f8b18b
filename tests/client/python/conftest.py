"""Makes the generated stubs and client/python importable, and runs a server.

Programs that tests start can import them too.
"""

import os
import subprocess
import sys
import tempfile

import grpc
import pytest

import server_process

_FOLDER = tempfile.TemporaryDirectory()
_IMPORTABLE = [_FOLDER.name, os.environ["ATTENTION_PYTHON_CLIENT"]]


def pytest_configure():
  generate = os.path.join(os.environ["ATTENTION_PYTHON_CLIENT"], "generate.sh")
  subprocess.run([generate, _FOLDER.name], check=True)
  sys.path[:0] = _IMPORTABLE
  os.environ["PYTHONPATH"] = os.pathsep.join(
      [*_IMPORTABLE, os.environ["PYTHONPATH"]])


def pytest_unconfigure():
  _FOLDER.cleanup()


@pytest.fixture(scope="module")
def server():
  """The real server, on the CPU."""
  if not server_process.have_real_server():
    pytest.skip("attention-server is not built")
  with server_process.real() as process:
    yield process


@pytest.fixture
def stub(server):
  from attention.v1 import attention_pb2_grpc
  with grpc.insecure_channel(server.address) as channel:
    yield attention_pb2_grpc.AttentionServiceStub(channel)
