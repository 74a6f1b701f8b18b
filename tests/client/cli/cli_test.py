"""attention-cli end to end, as a user would run it."""

import json
import os
import re
import struct
import subprocess

import numpy as np
import pytest

import server_process

CLI = os.environ["ATTENTION_CLI"]
ACTIVATIONS = os.environ.get("ATTENTION_ACTIVATIONS", "")
NOBODY = "--server=unix:/nonexistent/attention.sock"
NUMPY_TYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16,
               "F64": np.float64}


def run(*args):
  return subprocess.run([CLI, *args], capture_output=True, text=True,
                        timeout=120)


def write_safetensors(path, tensors, metadata=None):
  """`tensors` maps names to (type, array)."""
  header, data = {}, b""
  if metadata:
    header["__metadata__"] = metadata
  for name, (dtype, array) in tensors.items():
    raw = np.ascontiguousarray(array).tobytes()
    header[name] = {"dtype": dtype, "shape": list(array.shape),
                    "data_offsets": [len(data), len(data) + len(raw)]}
    data += raw
  text = json.dumps(header).encode()
  path.write_bytes(struct.pack("<Q", len(text)) + text + data)
  return str(path)


def read_safetensors(path):
  raw = open(path, "rb").read()
  (length,) = struct.unpack("<Q", raw[:8])
  header = json.loads(raw[8:8 + length])
  metadata = header.pop("__metadata__", {})
  data = raw[8 + length:]
  tensors = {}
  for name, entry in header.items():
    begin, end = entry["data_offsets"]
    tensors[name] = np.frombuffer(
        data[begin:end], NUMPY_TYPES[entry["dtype"]]).reshape(entry["shape"])
  return tensors, metadata


def attention(q, k, v, scale, causal):
  """float64 attention of BHSD arrays; returns output and log-sum-exp."""
  q, k, v = (x.astype(np.float64) for x in (q, k, v))
  group = q.shape[1] // k.shape[1]
  k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
  scores = scale * q @ k.swapaxes(-1, -2)
  if causal:
    m, n = scores.shape[-2:]
    scores[..., np.arange(n) > np.arange(m)[:, None] + n - m] = -np.inf
  top = scores.max(axis=-1, keepdims=True)
  weights = np.exp(scores - top)
  total = weights.sum(axis=-1, keepdims=True)
  return weights / total @ v, (np.log(total) + top)[..., 0]


@pytest.fixture
def qkv():
  random = np.random.default_rng(1)
  return {name: random.standard_normal(shape).astype(np.float32)
          for name, shape in (("q", (2, 4, 5, 16)), ("k", (2, 2, 9, 16)),
                              ("v", (2, 2, 9, 8)))}


@pytest.fixture(scope="module", params=["puppet", "real"])
def server(request):
  """The address of a server that answers correctly."""
  if request.param == "puppet":
    with server_process.puppet("exact") as process:
      yield process.address
  else:
    if not server_process.have_real_server():
      pytest.skip("attention-server is not built")
    with server_process.real() as process:
      yield process.address


def bhsd_file(path, qkv, metadata=None):
  return write_safetensors(
      path, {name: ("F32", array) for name, array in qkv.items()}, metadata)


# --- attend ---


def test_attend_writes_the_output(server, tmp_path, qkv):
  output = str(tmp_path / "o.safetensors")
  result = run("attend", "--input", bhsd_file(tmp_path / "i", qkv), "--output",
               output, "--layout=bhsd", "--scale=0.3", "--causal", "--lse",
               "--check", f"--server={server}")
  assert result.returncode == 0, result.stderr
  tensors, metadata = read_safetensors(output)
  expected, lse = attention(**qkv, scale=0.3, causal=True)
  assert set(tensors) == {"o", "lse"}
  np.testing.assert_allclose(tensors["o"], expected, atol=2e-5)
  np.testing.assert_allclose(tensors["lse"], lse, atol=2e-5)
  assert metadata["layout"] == "bhsd"
  assert "passed" in result.stdout
  assert "GB/s" in result.stdout
  assert "output   [2, 4, 5, 8], log-sum-exp [2, 4, 5]" in result.stdout


def fp8_bits(values):
  """e4m3 elements of integers whose magnitude is at most 15, as uint8."""
  magnitude = np.maximum(np.abs(values), 1)
  exponent = np.log2(magnitude).astype(int)
  bits = (exponent + 6) * 8 + magnitude * 8 // 2 ** exponent
  return np.where(values == 0, 0, bits + np.where(values < 0, 128, 0)).astype(
      np.uint8)


def from_bf16(bits):
  return (bits.astype(np.uint32) << 16).view(np.float32)


def test_attend_takes_fp8_and_its_scales(server, tmp_path, qkv):
  numbers = {name: np.rint(3 * array) for name, array in qkv.items()}
  scales = {"q": np.float32([0.25, 0.5, 1, 2]), "v": np.float32([0.5, 3])}
  file = write_safetensors(tmp_path / "i", {
      **{name: ("F8_E4M3", fp8_bits(n)) for name, n in numbers.items()},
      **{f"{name}_scales": ("F32", s) for name, s in scales.items()}})
  output = str(tmp_path / "o")
  result = run("attend", "--input", file, "--output", output, "--layout=bhsd",
               "--scale=0.1", "--causal", "--lse", "--check",
               f"--server={server}")
  assert result.returncode == 0, result.stderr
  assert "query    fp8 [2, 4, 5, 16]" in result.stdout
  assert "passed" in result.stdout
  tensors, _ = read_safetensors(output)
  for name, scale in scales.items():
    numbers[name] *= scale[:, None, None]
  expected, lse = attention(**numbers, scale=0.1, causal=True)
  np.testing.assert_allclose(from_bf16(tensors["o"]), expected,
                             atol=2e-2 * np.abs(expected).max())
  np.testing.assert_allclose(tensors["lse"], lse, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_attend_rounds_to_fp8(server, tmp_path, qkv, layout):
  sent = {name: array.swapaxes(1, 2) if layout == "bshd" else array
          for name, array in qkv.items()}
  output = str(tmp_path / "o")
  result = run("attend", f"--input={bhsd_file(tmp_path / 'i', sent)}",
               f"--output={output}", "--dtype=fp8", f"--layout={layout}",
               "--scale=0.3", "--check", f"--server={server}")
  assert result.returncode == 0, result.stderr
  assert "query    fp8" in result.stdout
  assert "passed" in result.stdout
  expected, _ = attention(**qkv, scale=0.3, causal=False)
  tensors, _ = read_safetensors(output)
  got = from_bf16(tensors["o"])
  if layout == "bshd":
    got = got.swapaxes(1, 2)
  # The rounding to 4 bits, of values around 1.
  assert np.abs(got - expected).mean() < 0.05
  assert np.abs(got - expected).max() < 0.3


def test_attend_refuses_scales_of_another_count(tmp_path, qkv):
  file = write_safetensors(tmp_path / "i", {
      **{name: ("F8_E4M3", fp8_bits(np.rint(n))) for name, n in qkv.items()},
      "k_scales": ("F32", np.ones(4, np.float32))})
  result = run("attend", "--input", file, "--layout=bhsd", NOBODY)
  assert result.returncode == 1
  assert ("the tensor k_scales must be F32 of shape [2]; got F32 of shape [4]"
          in result.stderr)


def test_attend_takes_both_layouts(server, tmp_path, qkv):
  bshd = {name: array.swapaxes(1, 2) for name, array in qkv.items()}
  output = str(tmp_path / "o")
  result = run("attend", f"--input={bhsd_file(tmp_path / 'i', bshd)}",
               f"--output={output}", "--scale=0.3", "--check",
               f"--server={server}")
  assert result.returncode == 0, result.stderr
  expected, _ = attention(**qkv, scale=0.3, causal=False)
  np.testing.assert_allclose(read_safetensors(output)[0]["o"].swapaxes(1, 2),
                             expected, atol=2e-5)


def test_attend_takes_defaults_from_the_metadata_and_says_so(
    server, tmp_path, qkv):
  path = bhsd_file(tmp_path / "i", qkv,
                   {"layout": "BHSD", "causal": "true", "scale": "0.25"})
  output = str(tmp_path / "o")
  result = run("attend", f"--input={path}", f"--output={output}", "--check",
               f"--server={server}")
  assert result.returncode == 0, result.stderr
  assert ("metadata: layout=bhsd, mask=causal_bottom_right, scale=0.25"
          in result.stderr)
  expected, _ = attention(**qkv, scale=0.25, causal=True)
  np.testing.assert_allclose(read_safetensors(output)[0]["o"], expected,
                             atol=2e-5)


def test_flags_win_over_metadata(server, tmp_path, qkv):
  path = bhsd_file(tmp_path / "i", qkv,
                   {"layout": "BHSD", "causal": "true", "scale": "nonsense"})
  output = str(tmp_path / "o")
  result = run("attend", f"--input={path}", f"--output={output}", "--scale=0.5",
               "--mask=none", f"--server={server}")
  assert result.returncode == 0, result.stderr
  assert "metadata: layout=bhsd\n" in result.stderr
  expected, _ = attention(**qkv, scale=0.5, causal=False)
  np.testing.assert_allclose(read_safetensors(output)[0]["o"], expected,
                             atol=2e-5)


def test_attend_returns_weights_and_takes_names(server, tmp_path, qkv):
  path = write_safetensors(
      tmp_path / "i", {"a": ("F32", qkv["q"]), "b": ("F32", qkv["k"]),
                       "c": ("F32", qkv["v"])})
  output = str(tmp_path / "o")
  result = run("attend", f"--input={path}", f"--output={output}", "--query=a",
               "--key=b", "--value=c", "--layout=bhsd", "--scale=1",
               "--algorithm=three_step", "--weights", "--lse", "--check",
               f"--server={server}")
  assert result.returncode == 0, result.stderr
  weights = read_safetensors(output)[0]["weights"]
  assert weights.shape == (2, 4, 5, 9)
  np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)


def test_long_names_are_found_too(server, tmp_path, qkv):
  names = {"q": "query", "k": "key", "v": "value"}
  path = bhsd_file(tmp_path / "i",
                   {names[name]: array for name, array in qkv.items()})
  result = run("attend", f"--input={path}", "--layout=bhsd", "--scale=1",
               "--check", f"--server={server}")
  assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_attend_takes_16_bit_types(server, tmp_path, qkv, dtype):
  def convert(array):
    if dtype == "F16":
      return array.astype(np.float16)
    return (array.view(np.uint32) >> 16).astype(np.uint16)

  path = write_safetensors(
      tmp_path / "i",
      {name: (dtype, convert(array)) for name, array in qkv.items()})
  result = run("attend", f"--input={path}", "--layout=bhsd", "--scale=0.25",
               "--window_left=3", "--window_right=1", "--lse", "--check",
               f"--server={server}")
  assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("name", ["i", "./i", "symbolic", "hard"])
def test_the_input_is_not_overwritten(tmp_path, qkv, name):
  path = bhsd_file(tmp_path / "i", qkv)
  os.symlink(path, tmp_path / "symbolic")
  os.link(path, tmp_path / "hard")
  result = run("attend", f"--input={path}", f"--output={tmp_path}/{name}",
               NOBODY)
  assert result.returncode == 2
  assert f"/{name} is the file of --input=" in result.stderr
  assert set(read_safetensors(path)[0]) == {"q", "k", "v"}


def test_check_fails_on_a_wrong_answer(tmp_path, qkv):
  path = bhsd_file(tmp_path / "i", qkv, {"layout": "BHSD"})
  with server_process.puppet("wrong") as process:
    args = ("attend", f"--input={path}", "--scale=1",
            f"--server={process.address}")
    assert run(*args).returncode == 0
    result = run(*args, "--check")
  assert result.returncode == 3
  assert "max error: output 0.5; FAILED" in result.stdout


def test_server_errors_are_shown_with_their_reason(tmp_path, qkv):
  path = bhsd_file(tmp_path / "i", qkv)
  output = tmp_path / "o"
  with server_process.puppet("full") as process:
    result = run("attend", f"--input={path}", f"--output={output}",
                 f"--server={process.address}")
  assert result.returncode == 1
  assert ("attention-cli attend: RESOURCE_EXHAUSTED: the queue is full "
          "[QUEUE_FULL]" in result.stderr)
  assert not output.exists()


def test_a_timeout_ends_the_wait(tmp_path, qkv):
  path = bhsd_file(tmp_path / "i", qkv)
  with server_process.puppet("mute") as process:
    result = run("attend", f"--input={path}", "--timeout=0.8s", "--progress",
                 f"--server={process.address}")
  assert result.returncode == 1
  assert "DEADLINE_EXCEEDED" in result.stderr
  assert "sending 6.02 kB and waiting for the answer, 0." in result.stderr


def test_no_progress_without_a_terminal(tmp_path, qkv):
  path = bhsd_file(tmp_path / "i", qkv)
  with server_process.puppet("mute") as process:
    result = run("attend", f"--input={path}", "--timeout=0.8s",
                 f"--server={process.address}")
  assert "waiting" not in result.stderr


# --- info and health ---


def test_info(server):
  result = run("info", f"--server={server}")
  assert result.returncode == 0, result.stderr
  assert "cpu backend" in result.stdout
  request = re.search(r"^request     at most (.*)$", result.stdout, re.M)
  result = run("info", "--json", f"--server={server}")
  assert result.returncode == 0, result.stderr
  info = json.loads(result.stdout)
  assert info["backend"] == "cpu"
  limits = info.get("limits", {})  # the puppet has none
  flops = limits.get("max_request_flops", 0)
  sequences = int(limits.get("max_request_sequences", 0))
  assert request.group(1) == (
      (f"{flops:.3g} FLOP" if flops else "unlimited FLOP") +
      f", {sequences or 'unlimited'} sequences")


def test_health(server):
  result = run("health", f"--server={server}")
  assert (result.returncode, result.stdout) == (0, "SERVING\n")
  result = run("health", "--service=nobody", f"--server={server}")
  assert result.returncode == 1
  assert "NOT_FOUND" in result.stderr


@pytest.mark.parametrize("command", ["info", "health"])
def test_nobody_listens(command):
  result = run(command, NOBODY)
  assert result.returncode == 1
  assert "UNAVAILABLE" in result.stderr


# --- the command line and files ---


@pytest.mark.parametrize("args, message", [
    ([], "Usage: attention-cli COMMAND"),
    (["fly"], 'there is no command "fly"'),
    (["attend"], "--input=FILE is missing"),
    (["attend", "--inputs=x"], "there is no flag --inputs"),
    (["attend", "x"], '"x" is not a flag'),
    (["attend", "--input"], "--input needs a value: --input=FILE"),
    (["attend", "--input=x", "--causal=yes"], "--causal takes no value"),
    (["attend", "--input=x", "--input=y"], "--input is given twice"),
    (["attend", "--input=x", "--causal", "--mask=none"], "give only one"),
    (["attend", "--input=x", "--mask=round"],
     '--mask must be one of none, causal_top_left, causal_bottom_right; got '
     '"round"'),
    (["attend", "--input=x", "--layout=thd"], "--layout must be one of"),
    (["attend", "--input=x", "--scale=nan"], "--scale must be a finite number"),
    (["attend", "--input=x", "--window_left=-1"],
     '--window_left must be an integer of at least 0; got "-1"'),
    (["attend", "--input=x", "--timeout=5"], "--timeout must be a time"),
    (["health", "--timeout=-1s"], "--timeout must be a time of more than 0"),
    (["info", "--causal"], "there is no flag --causal"),
    (["info", "--server="], "target must not be empty"),
])
def test_usage_errors(args, message):
  result = run(*args)
  assert result.returncode == 2
  assert message in result.stderr
  assert result.stdout == ""


@pytest.mark.parametrize("args", [["--help"], ["attend", "--help"],
                                  ["info", "-h"], ["health", "--help"]])
def test_help(args):
  result = run(*args)
  assert result.returncode == 0
  assert result.stdout.startswith("Usage: attention-cli")
  assert "Exit codes" in result.stdout
  assert all(len(line) <= 80 for line in result.stdout.splitlines())


def test_version():
  result = run("--version")
  assert result.returncode == 0
  assert re.fullmatch(r"attention-cli \d+\.\d+\.\d+\n", result.stdout)


def expect_file_error(path, message):
  result = run("attend", f"--input={path}", NOBODY)
  assert result.returncode == 1
  assert message in result.stderr


def test_bad_files(tmp_path, qkv):
  expect_file_error("/nonexistent", "NOT_FOUND: cannot open /nonexistent")
  broken = tmp_path / "broken"
  broken.write_bytes(b"\xff" * 100)
  expect_file_error(broken, "not a valid safetensors file")
  del qkv["k"]
  expect_file_error(bhsd_file(tmp_path / "no_k", qkv),
                    'no tensor "k" among "q", "v"; name it with --key')


def test_bad_tensors(tmp_path, qkv):
  path = write_safetensors(
      tmp_path / "mixed", {"q": ("F32", qkv["q"]),
                           "k": ("F16", qkv["k"].astype(np.float16)),
                           "v": ("F32", qkv["v"])})
  expect_file_error(path, "the query is F32, the key F16")
  path = write_safetensors(
      tmp_path / "f64",
      {n: ("F64", a.astype(np.float64)) for n, a in qkv.items()})
  expect_file_error(path, "the query is of type F64; must be F32, F16, "
                    "BF16 or F8_E4M3")
  qkv["q"] = qkv["q"][0]
  expect_file_error(bhsd_file(tmp_path / "rank", qkv),
                    "the query must have 4 dimensions (bshd); got 3")


def test_bad_metadata(tmp_path, qkv):
  path = bhsd_file(tmp_path / "i", qkv, {"layout": "SBHD"})
  expect_file_error(path, 'has layout="SBHD"; say --layout=bshd or bhsd')


@pytest.mark.parametrize("output", ["/nonexistent/o", "/proc/o", "/"])
def test_an_unwritable_output_is_found_out_before_computing(
    tmp_path, qkv, output):
  path = bhsd_file(tmp_path / "i", qkv, {"layout": "BHSD"})
  result = run("attend", f"--input={path}", f"--output={output}", NOBODY)
  assert result.returncode == 1
  assert f"{output}: cannot create" in result.stderr


def test_a_failure_leaves_the_output_as_it_was(tmp_path, qkv):
  path = bhsd_file(tmp_path / "i", qkv)
  output = tmp_path / "o"
  output.write_text("old")
  result = run("attend", f"--input={path}", f"--output={output}", NOBODY)
  assert result.returncode == 1
  assert output.read_text() == "old"
  assert sorted(os.listdir(tmp_path)) == ["i", "o"]


# --- real activations of a language model ---


@pytest.mark.parametrize("layer", [
    "layer1_bf16", "layer2_fp32_4heads", "layer3_bf16"])
def test_real_activations(layer, tmp_path):
  path = os.path.join(ACTIVATIONS, f"activations_qwen3style_{layer}.safetensors")
  if not os.path.exists(path):
    pytest.skip("no activations here")
  if not server_process.have_real_server():
    pytest.skip("attention-server is not built")
  output = str(tmp_path / "o")
  with server_process.real() as process:
    result = run("attend", f"--input={path}", f"--output={output}", "--lse",
                 "--check", f"--server={process.address}")
  assert result.returncode == 0, result.stdout + result.stderr
  expected = read_safetensors(path)[0]
  actual = read_safetensors(output)[0]
  values = actual["o"]
  if values.dtype == np.uint16:
    values = (values.astype(np.uint32) << 16).view(np.float32)
  bf16 = "bf16" in layer
  largest = np.abs(expected["o"]).max()
  np.testing.assert_allclose(
      values, expected["o"], rtol=0,
      atol=1e-3 + 1.6e-2 * largest if bf16 else 1e-5 * largest)
  np.testing.assert_allclose(actual["lse"], expected["lse"],
                             rtol=2e-4 if bf16 else 1e-5, atol=1e-5)
