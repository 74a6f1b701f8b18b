"""Tensors in 8 bits (e4m3) for stateless calls, with numpy.

    q8, query_scales = quantize_fp8(q, head_axis=2)  # BSHD
    request = pb.ComputeAttentionRequest(
        data_type=pb.DATA_TYPE_FLOAT8_E4M3, query=fp8_bytes(q8),
        query_scales=query_scales, ...)

numpy has no such type: here elements are their bits as uint8. Arrays of
ml_dtypes.float8_e4m3fn and tensors of torch.float8_e4m3fn can be sent as they are
(fp8_bytes); neither package is needed. The answer is bf16, whatever was sent.
"""

import numpy as np

LARGEST = 448.0


def to_fp8(array):
  """Rounds to the nearest e4m3, ties to even, as uint8 bits.

  What is larger than 448, infinities too, becomes 448; NaN stays NaN.
  """
  array = np.asarray(array, np.float32)
  sign = np.signbit(array).astype(np.uint8) << 7
  magnitude = np.minimum(np.abs(array), LARGEST)
  # Neighbours are 2^-9 apart below 2^-6, from there 2^-3 of the power of two.
  exponent = np.frexp(np.maximum(magnitude, np.float32(2**-6)))[1] - 1
  steps = np.rint(np.ldexp(magnitude, 3 - exponent))
  with np.errstate(invalid="ignore"):  # of NaN
    # A value that was rounded up to 2^(exponent + 1) carries into the exponent.
    bits = ((exponent + 6) * 8 + steps).astype(np.uint8)
  return sign | np.where(np.isnan(array), np.uint8(0x7F), bits)


def from_fp8(bits):
  """The fp32 values of e4m3 elements, without scales."""
  bits = np.asarray(bits, np.uint8)
  exponent, mantissa = (bits >> 3 & 15).astype(np.int32), bits & 7
  steps = np.where(exponent > 0, mantissa + 8.0, mantissa)
  values = np.ldexp(steps.astype(np.float32), np.maximum(exponent, 1) - 10)
  values = np.where(bits & 0x7F == 0x7F, np.float32(np.nan), values)
  return np.where(bits & 0x80, -values, values)


def quantize_fp8(array, head_axis):
  """Rounds a tensor to e4m3 with a scale for each head.

  A head's scale makes its largest finite value the largest of e4m3; that of a
  head without any is 1.

  Returns:
    uint8 elements, of the tensor's shape, and fp32 scales, one for each head: a
    value is from_fp8(element) times the scale of its head.
  """
  array = np.asarray(array, np.float32)
  head_axis %= array.ndim
  others = tuple(axis for axis in range(array.ndim) if axis != head_axis)
  finite = np.where(np.isfinite(array), np.abs(array), 0)
  largest = finite.max(axis=others, initial=0)
  # Not a subnormal, which kernels may take for 0.
  scales = np.maximum(largest / np.float32(LARGEST),
                      np.finfo(np.float32).tiny)
  scales = np.where(largest > 0, scales, 1).astype(np.float32)
  return to_fp8(array / np.expand_dims(scales, others)), scales


def fp8_bytes(array):
  """The bytes to send of e4m3 elements: uint8, ml_dtypes or torch.

  Raises:
    TypeError: the elements are of another type.
  """
  name = str(array.dtype)
  if name == "torch.float8_e4m3fn":
    import torch  # pylint: disable=import-outside-toplevel
    array = array.contiguous().view(torch.uint8).cpu().numpy()
  elif name not in ("uint8", "float8_e4m3fn"):
    raise TypeError("fp8 elements must be uint8, ml_dtypes.float8_e4m3fn or "
                    f"torch.float8_e4m3fn; got {name}")
  return array.tobytes()
