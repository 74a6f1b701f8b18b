"""Tensors in 8 bits: client/python/float8.py."""

import numpy as np
import pytest

from float8 import fp8_bytes, from_fp8, quantize_fp8, to_fp8

ALL_BITS = np.arange(256, dtype=np.uint8)


def test_every_element_has_the_value_that_its_bits_say():
  values = from_fp8(ALL_BITS)
  assert values.dtype == np.float32
  for bits in range(128):
    exponent, mantissa = bits >> 3, bits & 7
    expected = (2.0 ** (exponent - 7) * (1 + mantissa / 8) if exponent
                else 2.0 ** -6 * mantissa / 8)
    if bits == 127:
      expected = np.nan
    np.testing.assert_equal(values[bits], np.float32(expected))
    np.testing.assert_equal(values[bits + 128], np.float32(-expected))


def test_values_of_the_type_stay_as_they_are():
  assert to_fp8(from_fp8(ALL_BITS)).tolist() == ALL_BITS.tolist()


def test_ties_go_to_even_and_neighbours_of_ties_to_the_nearest():
  positive = from_fp8(ALL_BITS[:127])
  ties = (positive[:-1] + positive[1:]) / 2
  even = [bits + bits % 2 for bits in range(126)]
  assert to_fp8(ties).tolist() == even
  assert to_fp8(-ties).tolist() == [bits + 128 for bits in even]
  assert to_fp8(np.nextafter(ties, np.float32(0))).tolist() == list(range(126))
  above = np.nextafter(ties, np.float32(1000))
  assert to_fp8(above).tolist() == list(range(1, 127))


def test_what_is_too_large_saturates_and_nan_stays():
  bits = to_fp8(np.array([449, -1e30, np.inf, -np.inf, np.nan, 1e-45, -1e-45],
                         np.float32))
  assert bits.tolist() == [0x7E, 0xFE, 0x7E, 0xFE, 0x7F, 0, 0x80]


@pytest.mark.parametrize("head_axis", [1, 2, -2])
def test_each_head_has_a_scale(head_axis):
  random = np.random.default_rng(1)
  array = random.standard_normal((2, 5, 3, 8)).astype(np.float32)
  heads = np.moveaxis(array, head_axis, 0)
  heads *= 10.0 ** np.arange(-2, len(heads) - 2).reshape(-1, 1, 1, 1)
  bits, scales = quantize_fp8(array, head_axis)
  assert bits.shape == array.shape and bits.dtype == np.uint8
  assert scales.dtype == np.float32
  others = tuple(axis for axis in range(4) if axis != head_axis % 4)
  np.testing.assert_allclose(scales, np.abs(array).max(axis=others) / 448,
                             rtol=1e-6)
  values = from_fp8(bits) * np.expand_dims(scales, others)
  step = np.expand_dims(scales, others) * 2.0 ** -10
  assert (np.abs(values - array) <= np.abs(array) / 16 + step).all()


def test_heads_of_zeros_and_of_what_is_not_finite():
  array = np.array([[0, 0], [np.nan, np.inf], [1e-45, 0], [np.inf, 2]],
                   np.float32)
  bits, scales = quantize_fp8(array, head_axis=0)
  tiny = np.finfo(np.float32).tiny
  np.testing.assert_array_equal(scales, np.float32([1, 1, tiny, 2 / 448]))
  assert bits.tolist() == [[0, 0], [0x7F, 0x7E], [0, 0], [0x7E, 0x7E]]


def test_empty_tensors():
  bits, scales = quantize_fp8(np.zeros((0, 3, 4), np.float32), head_axis=1)
  assert bits.shape == (0, 3, 4)
  assert scales.tolist() == [1, 1, 1]


def test_bytes_of_uint8():
  assert fp8_bytes(ALL_BITS) == bytes(range(256))
  # In the order of the dimensions, whatever the memory's.
  assert fp8_bytes(ALL_BITS[:6].reshape(2, 3).T) == bytes([0, 3, 1, 4, 2, 5])


def test_bytes_of_another_type_are_refused():
  with pytest.raises(TypeError, match="got float32"):
    fp8_bytes(np.zeros(3, np.float32))


def test_bytes_of_ml_dtypes():
  ml_dtypes = pytest.importorskip("ml_dtypes")
  values = np.float32([0.1, -3, 448])
  assert (fp8_bytes(values.astype(ml_dtypes.float8_e4m3fn)) ==
          to_fp8(values).tobytes())


def test_bytes_of_torch():
  torch = pytest.importorskip("torch")
  values = torch.tensor([[0.1, -3], [448, 2]])
  assert (fp8_bytes(values.to(torch.float8_e4m3fn).T) ==
          to_fp8(values.numpy().T).tobytes())
