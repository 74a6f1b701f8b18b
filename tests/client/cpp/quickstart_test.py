"""Installs the client library and builds and runs an external project with it."""

import os
import subprocess

import pytest

import server_process

BUILD = os.environ["ATTENTION_BUILD"]
QUICKSTART = os.environ["ATTENTION_QUICKSTART"]


def run(*command):
  result = subprocess.run(command, capture_output=True, text=True, timeout=240)
  assert result.returncode == 0, result.stdout + result.stderr
  return result.stdout


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory):
  """The path of the program, built against an installed copy."""
  # Within the build folder, so that it is there to look at after a failure.
  root = os.path.join(BUILD, "quickstart_test")
  prefix, build = os.path.join(root, "prefix"), os.path.join(root, "build")
  run("cmake", "-E", "rm", "-rf", root)
  run("cmake", "--install", BUILD, "--component", "client", "--prefix", prefix)
  run("cmake", "-S", QUICKSTART, "-B", build, "-G", "Ninja",
      f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Release",
      f"-DCMAKE_CXX_COMPILER={os.environ['ATTENTION_CXX']}")
  run("cmake", "--build", build)
  return os.path.join(build, "attention-quickstart")


def test_nothing_of_the_source_tree_is_needed(quickstart):
  package = os.path.join(BUILD, "quickstart_test", "prefix")
  source = os.path.dirname(os.path.dirname(os.path.dirname(QUICKSTART)))
  files = [os.path.join(folder, name)
           for folder, _, names in os.walk(package) for name in names]
  assert any(name.endswith("AttentionClientConfig.cmake") for name in files)
  for name in files:
    if name.endswith((".cmake", ".h", ".proto")):
      with open(name, encoding="utf-8") as file:
        assert source not in file.read(), name


@pytest.mark.parametrize("kind", ["puppet", "real"])
def test_it_computes(quickstart, kind):
  if kind == "real" and not server_process.have_real_server():
    pytest.skip("attention-server is not built")
  start = server_process.real if kind == "real" else (
      lambda: server_process.puppet("exact"))
  with start() as server:
    assert "1048576 outputs from" in run(quickstart, server.address)
