"""Installs the client library and builds and runs an external project with it."""

import os
import shutil
import subprocess

import pytest

import server_process

BUILD = os.environ["ATTENTION_BUILD"]
QUICKSTART = os.environ["ATTENTION_QUICKSTART"]


SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(QUICKSTART)))
# Within the build folder, so that it is there to look at after a failure.
ROOT = os.path.join(BUILD, "quickstart_test")


def run(command):
  """Runs shell commands in ROOT."""
  result = subprocess.run(
      ["sh", "-ec", command], cwd=ROOT, capture_output=True, text=True,
      timeout=240, env={
          **os.environ, "CMAKE_GENERATOR": "Ninja",
          "CMAKE_BUILD_TYPE": "Release", "CXX": os.environ["ATTENTION_CXX"]})
  assert result.returncode == 0, result.stdout + result.stderr
  return result.stdout


def documented_commands():
  """The commands in the quickstart's description, one a string."""
  with open(os.path.join(QUICKSTART, "CMakeLists.txt"),
            encoding="utf-8") as file:
    lines = [line[4:] for line in file if line.startswith("#   ")]
  return "".join(lines).replace("\\\n", "").splitlines()


@pytest.fixture(scope="module")
def quickstart():
  """The documented command that runs the program, without the address.

  The commands before it are run as they stand, where build/release is the build
  under test.
  """
  shutil.rmtree(ROOT, ignore_errors=True)
  os.makedirs(os.path.join(ROOT, "build"))
  os.symlink(os.path.join(SOURCE, "client"), os.path.join(ROOT, "client"))
  os.symlink(BUILD, os.path.join(ROOT, "build", "release"))
  *commands, program = documented_commands()
  assert all("--preset release" in command for command in commands[:2])
  for command in commands[2:]:
    run(command)
  return program.removesuffix(" localhost:50051")


def test_nothing_of_the_source_tree_is_needed(quickstart):
  package = os.path.join(ROOT, "build", "client")
  files = [os.path.join(folder, name)
           for folder, _, names in os.walk(package) for name in names]
  assert any(name.endswith("AttentionClientConfig.cmake") for name in files)
  for name in files:
    if name.endswith((".cmake", ".h", ".proto")):
      with open(name, encoding="utf-8") as file:
        assert SOURCE not in file.read(), name


@pytest.mark.parametrize("kind", ["puppet", "real"])
def test_it_computes(quickstart, kind):
  if kind == "real" and not server_process.have_real_server():
    pytest.skip("attention-server is not built")
  start = server_process.real if kind == "real" else (
      lambda: server_process.puppet("exact"))
  with start() as server:
    output = run(f"{quickstart} {server.address}")
    assert "1048576 outputs from" in output
