"""client/python/attention_states.py against float64, and across servers."""

import os
import subprocess
import sys

import numpy as np
import pytest

import server_process
from attention_states import merge_attention_states

PYTHON_CLIENT = os.environ["ATTENTION_PYTHON_CLIENT"]


def attend(scores, values):
  """Output and log-sum-exp over the keys of `scores` [M, N]; values [N, D]."""
  weights = np.exp(scores)
  total = weights.sum(axis=-1)
  with np.errstate(divide="ignore", invalid="ignore"):
    output = np.nan_to_num(weights @ values / total[:, np.newaxis])
    return output.astype(np.float32), np.log(total).astype(np.float32)


@pytest.mark.parametrize("cuts", [(), (10,), (0, 3, 3, 49), (50,)])
def test_merged_parts_are_the_whole(cuts):
  random = np.random.default_rng()
  scores = 4 * random.standard_normal((7, 50))
  values = random.standard_normal((50, 9))
  bounds = [0, *cuts, 50]
  parts = [attend(scores[:, a:b], values[a:b])
           for a, b in zip(bounds, bounds[1:])]
  output, log_sum_exp = merge_attention_states(*zip(*parts))
  expected, expected_log_sum_exp = attend(scores, values)
  assert output.dtype == log_sum_exp.dtype == np.float32
  np.testing.assert_allclose(output, expected, atol=2e-6)
  np.testing.assert_allclose(log_sum_exp, expected_log_sum_exp, atol=4e-6)


def test_parts_without_keys_add_nothing_and_nan_stays():
  none = np.float32([-np.inf, -np.inf, 0])
  nan = np.float32([[np.nan], [np.nan], [np.nan]])
  output, log_sum_exp = merge_attention_states(
      [nan, np.float32([[3], [5], [7]])], [none, np.float32([1, -np.inf, 0])])
  np.testing.assert_array_equal(output, [[3], [0], [np.nan]])
  np.testing.assert_array_equal(log_sum_exp[:2], np.float32([1, -np.inf]))


def test_what_does_not_fit_is_refused():
  output, log_sum_exp = np.zeros((2, 3), np.float32), np.zeros(2, np.float32)
  for outputs, log_sum_exps in [([], []), ([output], []),
                                ([output, output[:1]], [log_sum_exp] * 2),
                                ([output], [output])]:
    with pytest.raises(ValueError):
      merge_attention_states(outputs, log_sum_exps)


def test_a_context_on_two_servers():
  if not server_process.have_real_server():
    pytest.skip("attention-server is not built")
  with server_process.real() as first, server_process.real() as second:
    result = subprocess.run(
        [sys.executable, os.path.join(PYTHON_CLIENT, "two_servers.py"),
         "--servers", first.address, second.address],
        capture_output=True, text=True, timeout=120)
  assert result.returncode == 0, result.stdout + result.stderr
  assert result.stdout.count("good") == 4
  assert "sessions, tokens 1200 to 2100" in result.stdout
