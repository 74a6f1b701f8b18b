"""client/python/sessions.py against servers, one of which is killed."""

import os
import subprocess

import grpc
import numpy as np
import pytest

import server_process

LAYERS, HEADS, KV_HEADS, DIM = 2, 4, 2, 16
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def server(stubs):
  if not server_process.have_real_server():
    pytest.skip("attention-server is not built")
  with server_process.real() as process:
    yield process.address


@pytest.fixture
def stub(server):
  from attention.v1 import attention_pb2_grpc
  with grpc.insecure_channel(server) as channel:
    yield attention_pb2_grpc.AttentionServiceStub(channel)


def create(stub, **options):
  from attention.v1 import attention_pb2 as pb
  from sessions import Session
  return Session.create(stub, pb.SessionConfiguration(
      data_type=pb.DATA_TYPE_FLOAT32, query_head_count=HEADS,
      kv_head_count=KV_HEADS, head_dim_qk=DIM, head_dim_v=DIM,
      layer_count=LAYERS, **options))


def random_tokens(count, random=np.random.default_rng()):
  return tuple(random.standard_normal((count, heads, DIM), dtype=np.float32)
               for heads in (HEADS, KV_HEADS, KV_HEADS))


def expected(q, k, v):
  from example import reference
  output, log_sum_exp = reference(*(x[np.newaxis] for x in (q, k, v)))
  return output[0], log_sum_exp[0]


def assert_close(got, q, k, v):
  output, log_sum_exp = expected(q, k, v)
  np.testing.assert_allclose(got[0], output, atol=TOLERANCE)
  if got[1] is not None:
    np.testing.assert_allclose(got[1], log_sum_exp, atol=2e-4)


def test_appends_attends_and_counts(stub):
  session = create(stub)
  q, k, v = random_tokens(100)
  session.append(1, k[:70], v[:70])
  session.append(1, k[70:], v[70:])
  assert session.token_counts == [0, 100]
  assert_close(session.attend(1, q[-9:], return_log_sum_exp=True), q[-9:], k, v)
  assert_close(session.attend(1, q[-1:], key_range=(20, 60)), q[-1:], k[20:60],
               v[20:60])
  output, none = session.attend(1, q, scale=0)
  assert none is None
  group = HEADS // KV_HEADS
  np.testing.assert_allclose(output[-1], np.repeat(v.mean(axis=0), group, axis=0),
                             atol=TOLERANCE)
  session.delete()
  session.delete()


def test_streams_large_prefixes(stub):
  from sessions import Session
  session = create(stub)
  q, k, v = random_tokens(30000)  # 7.7 MB
  session.append(0, k, v)
  assert session.token_counts == [30000, 0]
  assert Session.open(stub, session.name).token_counts == [30000, 0]
  assert_close(session.attend(0, q[-3:]), q[-3:], k, v)
  session.delete()


def test_a_call_that_is_repeated_appends_once(stub):
  from sessions import Session, decode
  session = create(stub)
  q, k, v = random_tokens(20000)
  lost = Session.open(stub, session.name)  # as if no answer had come
  lost.append(0, k[:10], v[:10])
  session.append(0, k[:10], v[:10])
  lost.append(0, k[10:], v[10:])
  session.append(0, k[10:], v[10:])
  assert session.refresh().layer_token_counts == [20000, 0]
  more = random_tokens(2)
  decode(stub, [(lost, 0, 2)], *more)
  step = decode(stub, [(session, 0, 2)], *more, return_log_sum_exp=True)
  assert step.errors == [None]
  assert_close((step.output, step.log_sum_exp), more[0],
               *(np.concatenate(x) for x in zip((k, v), more[1:])))
  assert session.token_counts == [20002, 0]
  session.delete()


def test_a_partial_prefix_is_gone_on_with(stub):
  from sessions import Session
  session = create(stub)
  q, k, v = random_tokens(30000)
  other = Session.open(stub, session.name)
  other.append(0, k[:12345], v[:12345])
  session.append(0, k, v)
  assert session.refresh().layer_token_counts == [30000, 0]
  assert_close(session.attend(0, q[-1:]), q[-1:], k, v)
  session.delete()


def test_decodes_many_sessions(stub):
  from sessions import decode
  sessions = [create(stub) for _ in range(3)]
  prefixes = [random_tokens(count) for count in (50, 1, 200)]
  for session, (_, k, v) in zip(sessions, prefixes):
    session.append(0, k, v)
  sessions[1].delete()
  counts = [1, 2, 3]
  q, k, v = random_tokens(6)
  step = decode(stub, [(session, 0, count)
                       for session, count in zip(sessions, counts)], q, k, v)
  assert [error is None for error in step.errors] == [True, False, True]
  assert step.errors[1].is_gone
  assert not step.output[1:3].any()
  for i, part in (0, slice(0, 1)), (2, slice(3, 6)):
    assert_close((step.output[part], None), q[part],
                 np.concatenate([prefixes[i][1], k[part]]),
                 np.concatenate([prefixes[i][2], v[part]]))
  assert [s.token_counts[0] for s in sessions] == [51, 1, 203]


def test_forks_and_truncates(stub):
  session = create(stub)
  q, k, v = random_tokens(100)
  for layer in range(LAYERS):
    session.append(layer, k, v)
  fork = session.fork(token_count=60)
  assert fork.token_counts == [60, 60]
  other_k, other_v = random_tokens(5)[1:]
  fork.append(0, other_k, other_v)
  assert_close(fork.attend(0, q[-1:]), q[-1:],
               np.concatenate([k[:60], other_k]),
               np.concatenate([v[:60], other_v]))
  assert_close(session.attend(0, q[-1:]), q[-1:], k, v)
  session.truncate(80)
  assert session.token_counts == [80, 80]
  assert_close(session.attend(1, q[-1:]), q[-1:], k[:80], v[:80])
  session.renew()
  for each in session, fork:
    each.delete()


def test_errors_have_reasons_and_facts(stub, server):
  from sessions import Session, SessionError
  session = create(stub)
  _, k, v = random_tokens(3)
  session.append(0, k, v)
  session.token_counts[0] = 1
  with pytest.raises(SessionError) as taken:
    session.append(0, k[:1], v[:1])
  assert taken.value.code == grpc.StatusCode.ALREADY_EXISTS
  assert taken.value.reason == "POSITION_TAKEN"
  assert taken.value.facts["token_count"] == "3"
  assert not taken.value.is_gone
  with pytest.raises(ValueError, match="elements of float32; got float64"):
    session.append(0, k.astype(np.float64), v)
  session.delete()
  with pytest.raises(SessionError) as wrong:
    Session.open(stub, session.name.replace("local.", "elsewhere."))
  assert wrong.value.reason == "WRONG_REPLICA"
  assert wrong.value.facts["replica"] == "elsewhere"
  assert not wrong.value.is_gone


def test_the_command_line_shows_and_deletes(stub, server):
  session = create(stub)
  _, k, v = random_tokens(7)
  session.append(1, k, v)

  def run(*args):
    return subprocess.run(
        [os.environ["ATTENTION_CLI"], "sessions", f"--server={server}", *args],
        capture_output=True, text=True, timeout=60)

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


def test_a_session_is_rebuilt_after_a_restart(stubs, tmp_path):
  if not server_process.have_real_server():
    pytest.skip("attention-server is not built")
  from attention.v1 import attention_pb2_grpc
  from sessions import SessionError, decode
  listen = f"--listen=unix:{tmp_path}/server.sock"
  q, k, v = random_tokens(300)
  history = [(layer, k[:-1], v[:-1]) for layer in range(LAYERS)]
  step = q[-1:], k[-1:], v[-1:]
  with server_process.real(listen) as first:
    with grpc.insecure_channel(first.address) as channel:
      session = create(attention_pb2_grpc.AttentionServiceStub(channel))
      for part in history:
        session.append(*part)
      before = session.attend(1, q[-8:-1])[0]
    old_name = session.name
    first.kill()
  with server_process.real(listen) as second:
    with grpc.insecure_channel(second.address) as channel:
      stub = attention_pb2_grpc.AttentionServiceStub(channel)
      session.stub = stub
      with pytest.raises(SessionError) as gone:
        session.attend(1, q[-8:-1])
      assert gone.value.code == grpc.StatusCode.NOT_FOUND
      assert gone.value.reason == "SESSION_NOT_FOUND"
      assert gone.value.is_gone
      lost = decode(stub, [(session, 1, 1)], *step)
      assert lost.errors[0].is_gone
      assert not lost.output.any()

      session.rebuild(history)
      assert session.name != old_name
      assert session.token_counts == [299, 299]
      np.testing.assert_array_equal(session.attend(1, q[-8:-1])[0], before)
      answer = decode(stub, [(session, 1, 1)], *step)
      assert answer.errors == [None]
      assert_close((answer.output, None), q[-1:], k, v)
