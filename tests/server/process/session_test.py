"""Sessions of the real server, with hostile, careless and ordinary callers."""

import os
import random

import grpc
import numpy as np
import pytest
from attention.v1 import attention_pb2 as pb
from attention.v1 import attention_pb2_grpc as rpc
from hostile_test import codes_of_mutants
from server_process import ServerProcess

SERVICE = "/attention.v1.AttentionService/"
SEED = int(os.environ.get("ATTENTION_TEST_SEED") or
           random.SystemRandom().randrange(1 << 32))
HEADS, KV_HEADS, DIM = 4, 2, 16


@pytest.fixture(scope="module", name="server")
def server_fixture():
  print(f"repeat with ATTENTION_TEST_SEED={SEED}")
  with ServerProcess("--replica_name=pod-1", "--session_page_tokens=16") as server:
    yield server
    assert server.stop() == 0


def configuration(**fields):
  return pb.SessionConfiguration(**{
      "data_type": pb.DATA_TYPE_FLOAT32, "query_head_count": HEADS,
      "kv_head_count": KV_HEADS, "head_dim_qk": DIM, "head_dim_v": DIM,
      "layer_count": 1, **fields})


class Context:
  """One layer of a session, and the same in numpy."""

  def __init__(self, stub, generator):
    self.stub = stub
    self.random = generator
    self.name = stub.CreateSession(pb.CreateSessionRequest(
        configuration=configuration())).session.name
    self.key = np.zeros((0, KV_HEADS, DIM), np.float32)
    self.value = self.key

  def draw(self, *shape):
    return self.random.standard_normal(shape, dtype=np.float32)

  def decode_request(self, tokens):
    """A step that appends; the arrays here have it already."""
    position = len(self.key)
    query = self.draw(tokens, HEADS, DIM)
    key, value = (self.draw(tokens, KV_HEADS, DIM) for _ in range(2))
    self.key = np.concatenate([self.key, key])
    self.value = np.concatenate([self.value, value])
    return query, pb.DecodeRequest(
        items=[pb.DecodeItem(session=self.name, token_count=tokens,
                             expected_position=position)],
        query=query.tobytes(), key=key.tobytes(), value=value.tobytes())

  def check(self, query, response):
    assert not response.item_errors
    group = HEADS // KV_HEADS
    key, value = (np.repeat(x, group, axis=1).astype(np.float64)
                  for x in (self.key, self.value))
    scores = np.einsum("mhd,nhd->hmn", query.astype(np.float64), key)
    scores /= np.sqrt(DIM)
    m, n = len(query), len(key)
    visible = np.arange(n)[None] <= np.arange(m)[:, None] + n - m
    scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(
        np.frombuffer(response.output, np.float32).reshape(m, HEADS, DIM),
        np.einsum("hmn,nhd->mhd", weights, value), rtol=0, atol=1e-5)


def check_serving(server):
  with server.channel() as channel:
    context = Context(rpc.AttentionServiceStub(channel),
                      np.random.default_rng(SEED))
    for tokens in (40, 1, 2):
      query, request = context.decode_request(tokens)
      context.check(query, context.stub.Decode(request, timeout=60))
    context.stub.DeleteSession(pb.DeleteSessionRequest(name=context.name))


def test_steps_and_streams(server):
  check_serving(server)
  with server.channel() as channel:
    context = Context(rpc.AttentionServiceStub(channel),
                      np.random.default_rng(SEED))
    assert context.name.startswith("sessions/pod-1.")
    tokens = 300
    key, value = (context.draw(tokens, KV_HEADS, DIM) for _ in range(2))

    def chunks():
      for begin in range(0, tokens, 7):
        part = slice(begin, min(begin + 7, tokens))
        yield pb.StreamAppendKeysValuesRequest(
            session=context.name, token_count=part.stop - part.start,
            expected_position=begin, key=key[part].tobytes(),
            value=value[part].tobytes())
    session = context.stub.StreamAppendKeysValues(chunks(), timeout=60).session
    assert list(session.layer_token_counts) == [tokens]
    context.key, context.value = key, value
    queries, messages = [], []
    for tag in range(5):
      query, request = context.decode_request(1)
      queries.append(query)
      messages.append(pb.StreamDecodeRequest(
          tag=tag, items=request.items, query=request.query, key=request.key,
          value=request.value))
    answers = list(context.stub.StreamDecode(iter(messages), timeout=60))
    assert [a.tag for a in answers] == list(range(5))
    context.check(queries[-1], answers[-1])


@pytest.mark.parametrize("method", ["AppendKeysValues", "AttendSession",
                                    "Decode", "CreateSession", "ForkSession",
                                    "ListSessions"])
def test_mutated_messages(server, method):
  with server.channel() as channel:
    stub = rpc.AttentionServiceStub(channel)
    context = Context(stub, np.random.default_rng(SEED))
    query, decode = context.decode_request(2)
    item = decode.items[0]
    messages = {
        "AppendKeysValues": pb.AppendKeysValuesRequest(
            session=item.session, token_count=2, key=decode.key,
            value=decode.value),
        "AttendSession": pb.AttendSessionRequest(
            session=item.session, token_count=2, query=query.tobytes()),
        "Decode": decode,
        "CreateSession": pb.CreateSessionRequest(configuration=configuration()),
        "ForkSession": pb.ForkSessionRequest(name=context.name, token_count=0),
        "ListSessions": pb.ListSessionsRequest(page_token="x" * 60)}
    codes = codes_of_mutants(
        channel.unary_unary(SERVICE + method),
        messages[method].SerializeToString(), 400, random.Random(SEED),
        noise_every=20, noise_bytes=300)
  allowed = {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT,
             grpc.StatusCode.NOT_FOUND, grpc.StatusCode.OUT_OF_RANGE,
             grpc.StatusCode.ALREADY_EXISTS,
             grpc.StatusCode.RESOURCE_EXHAUSTED}
  if method not in ("AppendKeysValues", "AttendSession", "Decode"):
    # What gRPC itself says of messages that protobuf cannot parse.
    allowed.add(grpc.StatusCode.INTERNAL)
  assert set(codes) <= allowed
  check_serving(server)


def test_absurd_steps_are_refused_at_once(server):
  huge = (1 << 63) - 1
  with server.channel() as channel:
    stub = rpc.AttentionServiceStub(channel)
    context = Context(stub, np.random.default_rng(SEED))

    def item(**fields):
      return pb.DecodeItem(**{"session": context.name, "token_count": 1,
                              **fields})
    requests = [
        pb.DecodeRequest(),
        pb.DecodeRequest(items=[item()] * 5000),
        pb.DecodeRequest(items=[item(token_count=huge)] * 3),
        pb.DecodeRequest(items=[item(token_count=(1 << 31) - 1)]),
        pb.DecodeRequest(items=[item(layer=1 << 30)]),
        pb.DecodeRequest(items=[item(layer=-1)]),
        pb.DecodeRequest(items=[item(expected_position=huge)]),
        pb.DecodeRequest(items=[item(session="x" * 1_000_000)])]
    for request in requests:
      with pytest.raises(grpc.RpcError) as raised:
        stub.Decode(request, timeout=60)
      assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.RpcError) as raised:
      stub.AttendSession(pb.AttendSessionRequest(
          session=context.name, token_count=1, query=bytes(HEADS * DIM * 4),
          key_range=pb.TokenRange(begin=0, end=1 << 40)), timeout=60)
    assert raised.value.code() == grpc.StatusCode.OUT_OF_RANGE
    for fields in [{"layer_count": 1 << 30}, {"query_head_count": 1 << 30},
                   {"kv_head_count": 1 << 30}, {"head_dim_v": 1 << 30}]:
      with pytest.raises(grpc.RpcError) as raised:
        stub.CreateSession(pb.CreateSessionRequest(
            configuration=configuration(**fields)), timeout=60)
      assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    for reserved in (1 << 40, huge):
      with pytest.raises(grpc.RpcError) as raised:
        stub.CreateSession(pb.CreateSessionRequest(
            configuration=configuration(), reserved_token_count=reserved),
            timeout=60)
      assert raised.value.code() in (grpc.StatusCode.INVALID_ARGUMENT,
                                     grpc.StatusCode.RESOURCE_EXHAUSTED)
  check_serving(server)


def test_streams_that_are_left_alone(server):
  with server.channel() as channel:
    stub = rpc.AttentionServiceStub(channel)
    for i in range(30):
      context = Context(stub, np.random.default_rng(SEED))
      requests = [context.decode_request(1)[1] for _ in range(i)]
      call = stub.StreamDecode(iter([
          pb.StreamDecodeRequest(items=r.items, query=r.query, key=r.key,
                                 value=r.value) for r in requests]))
      call.cancel()
  check_serving(server)


def test_a_message_of_nonsense_ends_its_stream(server):
  with server.channel() as channel:
    for method, client in (("StreamDecode", channel.stream_stream),
                           ("StreamAppendKeysValues", channel.stream_unary)):
      call = client(SERVICE + method)
      with pytest.raises(grpc.RpcError) as raised:
        answer = call(iter([b"\xff\xff\xff"]), timeout=60)
        list(answer)
      assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
  check_serving(server)


SMALL = ("--replica_name=pod-1", "--session_page_tokens=16",
         "--session_memory=256KiB")  # 64 pages


def test_sessions_that_do_not_fit_go_to_the_host():
  generator = np.random.default_rng(SEED)
  with ServerProcess(*SMALL, "--session_spill_memory=1MiB") as server:
    with server.channel() as channel:
      stub = rpc.AttentionServiceStub(channel)
      contexts = [Context(stub, generator) for _ in range(8)]
      for tokens in (300, 1, 7):  # in the end 20 pages each
        for context in contexts:
          query, request = context.decode_request(tokens)
          context.check(query, stub.Decode(request, timeout=60))
      fork = stub.ForkSession(pb.ForkSessionRequest(
          name=contexts[0].name)).session
      assert fork.layer_token_counts == [308]
      stub.TruncateSession(pb.TruncateSessionRequest(name=fork.name,
                                                     token_count=100))
      for context in contexts:
        stub.DeleteSession(pb.DeleteSessionRequest(name=context.name))
      contexts[0].name = fork.name
      contexts[0].key = contexts[0].key[:100]
      contexts[0].value = contexts[0].value[:100]
      query, request = contexts[0].decode_request(1)
      contexts[0].check(query, stub.Decode(request, timeout=60))
      stub.DeleteSession(pb.DeleteSessionRequest(name=fork.name))
    metrics = server.metrics()
    assert metrics['attention_session_events_total{event="evicted"}'] > 16
    assert metrics['attention_session_events_total{event="restored"}'] > 15
    assert metrics[
        'attention_session_pages{device="cpu:0",state="spilled"}'] == 0
    assert server.stop() == 0


def test_without_memory_to_spill_to_the_server_is_full():
  with ServerProcess(*SMALL) as server:
    with server.channel() as channel:
      stub = rpc.AttentionServiceStub(channel)
      contexts = [Context(stub, np.random.default_rng(SEED)) for _ in range(4)]
      for context in contexts[:3]:
        query, request = context.decode_request(300)
        context.check(query, stub.Decode(request, timeout=60))
      _, request = contexts[3].decode_request(300)
      error, = stub.Decode(request, timeout=60).item_errors
      assert error.error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
      assert error.error.reason == "CACHE_FULL"
      assert error.error.retry_delay.seconds >= 1
    assert server.stop() == 0
