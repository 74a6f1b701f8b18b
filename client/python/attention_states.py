"""Attention over keys that are in several places, with numpy.

The output and the log-sum-exp of a query over a set of keys are all that is
needed to add other keys later: a context can be cut into parts, each be attended
to where it is, also on different servers, and the answers be merged.
"""

import numpy as np


def merge_attention_states(outputs, log_sum_exps):
  """Merges the answers to one query over disjoint sets of keys.

  Args:
    outputs: arrays of one shape [..., D], at least one.
    log_sum_exps: as many arrays of shape [...]; -inf where a query sees none of
      the keys: that part then adds nothing, whatever its output is.

  Returns:
    The output in the dtype of the first one, and the log-sum-exp in fp32, over
    all keys. Rows without any have 0 and -inf, rows with NaN are NaN. Sums are
    formed in float64 and rounded once.

  Raises:
    ValueError: there is no part, or shapes disagree.
  """
  if len(outputs) == 0 or len(outputs) != len(log_sum_exps):
    raise ValueError("there must be as many outputs as log_sum_exps, at least 1; "
                     f"got {len(outputs)} and {len(log_sum_exps)}")
  for i, (output, log_sum_exp) in enumerate(zip(outputs, log_sum_exps)):
    if (output.shape != outputs[0].shape or
        log_sum_exp.shape != output.shape[:-1]):
      raise ValueError(
          f"part {i}: an output of {output.shape} and a log-sum-exp of "
          f"{log_sum_exp.shape} do not fit an output of {outputs[0].shape}")
  parts = np.stack(log_sum_exps).astype(np.float64)
  highest = parts.max(axis=0)  # NaN if any is
  with np.errstate(invalid="ignore", divide="ignore"):
    weights = np.where(parts == -np.inf, 0.0, np.exp(parts - highest))
    total = weights.sum(axis=0)
    merged_log_sum_exp = np.where(total == 0, -np.inf, highest + np.log(total))
    weights = np.where(total == 0, 0.0, weights / total)[..., np.newaxis]
    merged = sum(
        np.where(weight == 0, 0.0, weight * output.astype(np.float64))
        for weight, output in zip(weights, outputs))
  return (merged.astype(outputs[0].dtype),
          merged_log_sum_exp.astype(np.float32))
