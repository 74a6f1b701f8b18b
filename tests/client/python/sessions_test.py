"""client/python/sessions.py and decode_stream.py against a server and numpy."""

import os
import random
import subprocess

import grpc
import numpy as np
import pytest

import server_process
from attention.v1 import attention_pb2 as pb
from attention.v1 import attention_pb2_grpc
from attention_states import merge_attention_states
from decode_stream import DecodeStream
from example import from_bf16, reference, to_bf16
from session_errors import SessionError
from sessions import Session, decode

SEED = int(os.environ.get("ATTENTION_TEST_SEED") or
           random.SystemRandom().randrange(1 << 32))
HEADS, KV_HEADS, DIM, VALUE_DIM, LAYERS = 6, 2, 16, 8, 2


@pytest.fixture(scope="module", autouse=True)
def seed():
  print(f"repeat with ATTENTION_TEST_SEED={SEED}")


def configuration(**fields):
  return pb.SessionConfiguration(**{
      "data_type": pb.DATA_TYPE_FLOAT32, "query_head_count": HEADS,
      "kv_head_count": KV_HEADS, "head_dim_qk": DIM, "head_dim_v": VALUE_DIM,
      "layer_count": LAYERS, **fields})


class Tokens:
  """Random queries, keys and values of a context."""

  def __init__(self, count, seed=0):
    generator = np.random.default_rng([SEED, seed])
    self.queries, self.keys, self.values = (
        generator.standard_normal((count, *shape), dtype=np.float32)
        for shape in ((HEADS, DIM), (KV_HEADS, DIM), (KV_HEADS, VALUE_DIM)))

  def part(self, begin, end):
    """(queries, keys, values) of some of them."""
    return [x[begin:end] for x in (self.queries, self.keys, self.values)]

  def check(self, output, begin, end, atol=1e-5):
    """The answer to the queries begin...end - 1, when there are `end` keys."""
    queries, keys, values = (
        x[np.newaxis] for x in (self.queries[begin:end], self.keys[:end],
                                self.values[:end]))
    expected, _ = reference(queries, keys, values)
    np.testing.assert_allclose(output, expected[0], rtol=0, atol=atol)


def test_steps_of_one_session(stub):
  tokens = Tokens(60)
  with Session.create(stub, configuration()) as session:
    session.append(1, tokens.keys[:40], tokens.values[:40])
    assert session.token_counts == [0, 40]
    output, log_sum_exp = session.attend(1, tokens.queries[:40])
    assert log_sum_exp is None
    tokens.check(output, 0, 40)
    for begin, end in ((40, 41), (41, 60)):
      decoded = decode(stub, [(session, 1, end - begin)],
                       *tokens.part(begin, end))
      assert decoded.errors == [None]
      tokens.check(decoded.output, begin, end)
    output, _ = session.attend(1, tokens.queries[-1:], scale=0)
    np.testing.assert_allclose(
        output[0], np.repeat(tokens.values.mean(axis=0), HEADS // KV_HEADS,
                             axis=0), rtol=0, atol=1e-5)
    session.renew(ttl_s=90.5)
    opened = Session.open(stub, session.name)
    assert opened.token_counts == [0, 60]
    assert opened.refresh().ttl.ToMilliseconds() == 90500
  with pytest.raises(SessionError) as raised:
    Session.open(stub, session.name)
  assert raised.value.code == grpc.StatusCode.NOT_FOUND
  assert raised.value.reason == "SESSION_NOT_FOUND"
  session.delete()  # again
  with pytest.raises(SessionError) as raised:
    Session.open(stub, session.name.replace("/local.", "/elsewhere."))
  assert raised.value.reason == "WRONG_REPLICA"
  assert raised.value.facts == {"replica": "elsewhere"}
  assert not raised.value.is_gone


def test_bfloat16_and_parts_that_are_merged(stub):
  tokens = Tokens(50)
  sent = [to_bf16(x) for x in tokens.part(0, 50)]
  tokens.queries, tokens.keys, tokens.values = (from_bf16(x) for x in sent)
  with Session.create(stub, configuration(
      data_type=pb.DATA_TYPE_BFLOAT16)) as session:
    session.append(0, *sent[1:])
    states = [session.attend(0, sent[0][-3:], key_range,
                             return_log_sum_exp=True)
              for key_range in ((0, 20), (20, 20), (20, 50))]
  assert states[0][0].dtype == np.uint16
  assert np.all(states[1][1] == -np.inf)
  output, _ = merge_attention_states(
      [from_bf16(output) for output, _ in states],
      [log_sum_exp for _, log_sum_exp in states])
  tokens.check(output, 47, 50, atol=3e-2)


def test_long_prompts_are_streamed(stub):
  tokens = Tokens(500)
  messages = []

  def counted(requests, timeout):
    def pass_on():
      for request in requests:
        messages.append(request.token_count)
        yield request
    return stub.StreamAppendKeysValues(pass_on(), timeout=timeout)

  class Counting:
    StreamAppendKeysValues = staticmethod(counted)
    def __getattr__(self, name):
      return getattr(stub, name)

  with Session.create(Counting(), configuration()) as session:
    session.stream_append([(layer, tokens.keys, tokens.values)
                           for layer in range(LAYERS)], chunk_bytes=20000)
    assert session.token_counts == [500] * LAYERS
    assert len(messages) > 2 and sum(messages) == 500 * LAYERS
    tokens.check(session.attend(1, tokens.queries[-3:])[0], 497, 500)

    # As after a stream that broke in the middle of the second layer.
    messages.clear()
    session.truncate(100)
    other = Session.open(stub, session.name)
    other.append(0, tokens.keys[100:], tokens.values[100:])
    other.append(1, tokens.keys[100:130], tokens.values[100:130])
    session.stream_append([(layer, tokens.keys[100:], tokens.values[100:])
                           for layer in range(LAYERS)], chunk_bytes=1 << 20)
    assert session.token_counts == [500] * LAYERS
    assert messages[-1] == 370  # tokens that were not there
    tokens.check(session.attend(1, tokens.queries[-3:])[0], 497, 500)

    # Everything is there, then even more than that.
    session.token_counts = [100] * LAYERS
    session.stream_append([(0, tokens.keys[100:], tokens.values[100:])])
    assert session.token_counts == [500, 100]


def test_a_large_append_is_streamed_by_itself(stub):
  tokens = Tokens(2, seed=1)
  count = 30000
  keys, values = (np.concatenate([np.zeros((count - 2, *x.shape[1:]), x.dtype),
                                  x]) for x in (tokens.keys, tokens.values))
  assert keys.nbytes + values.nbytes > 4 << 20
  with Session.create(stub, configuration()) as session:
    session.append(0, keys, values)
    assert session.refresh().layer_token_counts[0] == count
    output, _ = session.attend(0, tokens.queries, key_range=(count - 2, count))
  tokens.check(output, 0, 2)


def test_a_lost_answer_does_no_harm(stub):
  tokens = Tokens(30)
  with Session.create(stub, configuration()) as session:
    session.append(0, tokens.keys[:20], tokens.values[:20])
    # What remains after a call whose answer got lost: the server has counted.
    session.token_counts[0] = 0
    session.append(0, tokens.keys[:20], tokens.values[:20])
    assert session.token_counts[0] == 20
    other = Session.open(stub, session.name)
    first = decode(stub, [(session, 0, 3)], *tokens.part(20, 23),
                   return_log_sum_exp=True)
    second = decode(stub, [(other, 0, 3)], *tokens.part(20, 23),
                    return_log_sum_exp=True)
    assert other.token_counts == session.token_counts == [23, 0]
    assert second.errors == [None]
    tokens.check(second.output, 20, 23)
    np.testing.assert_allclose(second.log_sum_exp, first.log_sum_exp, atol=1e-5)
    # Other tokens are no retry.
    other.token_counts[0] = 20
    with pytest.raises(SessionError) as raised:
      other.append(0, tokens.keys[20:22], tokens.values[20:22])
    assert raised.value.reason == "POSITION_TAKEN"
    assert raised.value.facts == {"token_count": "23"}
    assert raised.value.code == grpc.StatusCode.ALREADY_EXISTS


def test_an_error_concerns_one_item(stub):
  tokens = [Tokens(10, seed) for seed in range(3)]
  sessions = [Session.create(stub, configuration()) for _ in tokens]
  for session, t in zip(sessions, tokens):
    session.append(0, t.keys[:8], t.values[:8])
  sessions[1].delete()

  def step(begin, which):
    parts = [tokens[i].part(begin, begin + 1) for i in which]
    return decode(stub, [(sessions[i], 0, 1) for i in which],
                  *(np.concatenate(x) for x in zip(*parts)),
                  return_log_sum_exp=True)

  decoded = step(8, [0, 1, 2])
  assert [e and e.reason for e in decoded.errors] == [
      None, "SESSION_NOT_FOUND", None]
  assert decoded.errors[1].is_gone
  assert [s.token_counts[0] for s in sessions] == [9, 8, 9]
  tokens[0].check(decoded.output[:1], 8, 9)
  tokens[2].check(decoded.output[2:], 8, 9)
  assert not decoded.output[1].any()
  assert np.all(decoded.log_sum_exp[1] == -np.inf)

  decoded = step(9, [1])
  assert decoded.errors[0].code == grpc.StatusCode.NOT_FOUND
  assert decoded.output.shape == (1, HEADS, VALUE_DIM)
  assert not decoded.output.any() and np.all(decoded.log_sum_exp == -np.inf)


def test_forks_and_truncation(stub):
  tokens, branch = Tokens(30), Tokens(30)
  for x, y in zip(branch.part(20, 30), Tokens(10, seed=1).part(0, 10)):
    x[:] = y  # the first 20 tokens are common
  with Session.create(stub, configuration(layer_count=1)) as session:
    session.append(0, tokens.keys[:25], tokens.values[:25])
    with session.fork(token_count=20) as fork:
      decoded = decode(stub, [(session, 0, 5), (fork, 0, 10)],
                       *(np.concatenate(x) for x in zip(tokens.part(25, 30),
                                                        branch.part(20, 30))))
      tokens.check(decoded.output[:5], 25, 30)
      branch.check(decoded.output[5:], 20, 30)
      session.truncate(22)
      assert session.token_counts == [22]
      tokens.check(session.attend(0, tokens.queries[20:22])[0], 20, 22)
      with pytest.raises(SessionError) as raised:
        session.fork(token_count=23)
      assert raised.value.reason == "POSITION_GAP"


def test_steps_that_do_not_wait(stub):
  tokens = [Tokens(60, seed) for seed in range(3)]
  sessions = [Session.create(stub, configuration()) for _ in tokens]
  with DecodeStream(stub) as stream:
    steps = [(t, position, stream.send([(s, 1, 1)],
                                       *t.part(position, position + 1)))
             for position in range(60) for s, t in zip(sessions, tokens)]
    assert [s.token_counts for s in sessions] == [[0, 60]] * 3
    for t, position, step in steps:
      t.check(step.result(timeout=60).output, position, position + 1)
  assert [s.refresh().layer_token_counts[1] for s in sessions] == [60] * 3


def test_errors_of_a_stream(stub):
  tokens = Tokens(10)
  gone = Session.create(stub, configuration())
  gone.delete()
  with Session.create(stub, configuration()) as session:
    with DecodeStream(stub) as stream:
      of_item = stream.send([(gone, 0, 1)], *tokens.part(0, 1))
      gone.name = "no session"
      of_message = stream.send([(gone, 0, 1)], *tokens.part(0, 1))
      good = stream.send([(session, 0, 1)], *tokens.part(0, 1))
      assert of_item.result().errors[0].reason == "SESSION_NOT_FOUND"
      with pytest.raises(SessionError) as raised:
        of_message.result()
      assert raised.value.reason == "INVALID_REQUEST"
      assert raised.value.code == grpc.StatusCode.INVALID_ARGUMENT
      tokens.check(good.result().output, 0, 1)
    with pytest.raises(SessionError, match="ended"):
      stream.send([(session, 0, 1)], *tokens.part(1, 2)).result()
    session.refresh()
    with pytest.raises(ZeroDivisionError):
      with DecodeStream(stub) as stream:
        stream.send([(session, 0, 1)], *tokens.part(2, 3))
        1 / 0


def test_arrays_that_do_not_fit(stub):
  tokens = Tokens(4)
  with Session.create(stub, configuration()) as session:
    q, k, v = tokens.part(0, 4)
    for call in (lambda: session.append(0, v, k),
                 lambda: session.append(0, k, v[:3]),
                 lambda: session.append(0, k.astype(np.float16), v),
                 lambda: session.stream_append([(0, k, v[:, :1])]),
                 lambda: session.append(LAYERS, k, v),
                 lambda: session.append(-1, k, v),
                 lambda: session.stream_append([(LAYERS, k, v)]),
                 lambda: session.attend(0, q[:, :2]),
                 lambda: decode(stub, [], q, k, v),
                 lambda: decode(stub, [(session, LAYERS, 4)], q, k, v),
                 lambda: decode(stub, [(session, 0, 3)], q, k, v),
                 lambda: decode(stub, [(session, 0, 4)], q[:2], k, v)):
      with pytest.raises(ValueError):
        call()
    assert list(session.refresh().layer_token_counts) == [0] * LAYERS


def test_times_to_live(stub):
  with Session.create(stub, configuration(), ttl_s=0.9999999999) as session:
    assert session.refresh().ttl.ToNanoseconds() == 10**9
  for ttl_s in (-0.5, -1):
    with pytest.raises(SessionError) as error:
      Session.create(stub, configuration(), ttl_s=ttl_s)
    assert error.value.reason == "INVALID_REQUEST"


def test_the_command_line_shows_and_deletes(stub, server):
  session = Session.create(stub, configuration())
  session.append(1, *Tokens(7).part(0, 7)[1:])

  def run(*flags):
    return subprocess.run(
        [os.environ["ATTENTION_CLI"], "sessions", f"--server={server.address}",
         *flags], capture_output=True, text=True, timeout=60)

  assert session.name in run().stdout
  assert session.name not in run("--tenant=somebody").stdout
  shown = run("--name", session.name).stdout
  assert "tokens    0, 7\n" in shown
  assert f"heads     {HEADS}, {KV_HEADS} of keys and values" in shown
  other = run("--name", session.name, "--tenant=somebody")
  assert (other.returncode, other.stdout) == (1, "")
  assert "[SESSION_NOT_FOUND]" in other.stderr
  assert run("--delete").returncode == 2
  assert run("--name", session.name, "--delete").returncode == 0
  assert session.name not in run().stdout
  assert run("--name", session.name).returncode == 1


@pytest.mark.skipif(not server_process.have_real_server(),
                    reason="attention-server is not built")
def test_a_server_that_restarts(tmp_path):
  """The documented way back: the session is gone, and is built anew."""
  tokens = Tokens(300)
  history = [(layer, tokens.keys[:290], tokens.values[:290])
             for layer in range(LAYERS)]
  listen = f"--listen=unix:{tmp_path}/socket"
  with (server_process.real(listen) as server,
        grpc.insecure_channel(server.address) as channel):
    stub = attention_pb2_grpc.AttentionServiceStub(channel)
    session = Session.create(stub, configuration())
    for part in history:
      session.append(*part)
    before, _ = session.attend(1, tokens.queries[250:290])
    server.kill()
    with pytest.raises(SessionError) as raised:
      session.append(0, *tokens.part(290, 300)[1:])
    assert raised.value.code == grpc.StatusCode.UNAVAILABLE
    assert not raised.value.is_gone

    with server_process.real(listen):
      grpc.channel_ready_future(channel).result(timeout=60)
      old_name = session.name
      with pytest.raises(SessionError) as raised:
        session.append(0, *tokens.part(290, 300)[1:])
      assert raised.value.code == grpc.StatusCode.NOT_FOUND
      assert raised.value.reason == "SESSION_NOT_FOUND"
      assert raised.value.is_gone

      session.rebuild(history)
      assert session.name != old_name
      after, _ = session.attend(1, tokens.queries[250:290])
      np.testing.assert_allclose(after, before, rtol=0, atol=1e-6)
      decoded = decode(stub, [(session, 0, 10)], *tokens.part(290, 300))
      tokens.check(decoded.output, 290, 300)
