"""What tests of the Python client share."""

import os
import subprocess
import sys

import pytest

PYTHON_CLIENT = os.environ["ATTENTION_PYTHON_CLIENT"]


@pytest.fixture(scope="session")
def stubs(tmp_path_factory):
  """The folder with the generated stubs, importable."""
  folder = str(tmp_path_factory.mktemp("stubs"))
  subprocess.run([os.path.join(PYTHON_CLIENT, "generate.sh"), folder],
                 check=True)
  sys.path[:0] = [folder, PYTHON_CLIENT]
  return folder
