"""Keys and values that stay on the server, with numpy.

    with Session.create(stub, configuration) as session:
      session.append(layer, keys, values)         # [T, K/V heads, dim]
      output, _ = session.attend(layer, queries)  # [M, query heads, value dim]
      step = decode(stub, [(session, layer, 1)], query, key, value)

`stub` is an AttentionServiceStub, `configuration` a pb.SessionConfiguration.
Arrays are fp32, fp16, or for bf16 its bits as uint16 (example.py converts).
Steps that do not wait for each other are in decode_stream.py.

A session counts the tokens of each layer here, too, and says with each call where
they are to go: a call that failed may be repeated as it is, tokens are appended
at most once. A layer has one writer; who goes on with what another one wrote
opens the session, or calls `refresh`.

A server that restarts has forgotten its sessions. SessionError.is_gone then says
so, and `rebuild` makes the session again from keys and values that the caller
kept, or computes anew.
"""

from typing import List, NamedTuple, Optional

import grpc
import numpy as np
from google.protobuf import duration_pb2

from attention.v1 import attention_pb2 as pb
from session_errors import SessionError

_DTYPES = {pb.DATA_TYPE_FLOAT32: np.dtype(np.float32),
           pb.DATA_TYPE_FLOAT16: np.dtype(np.float16),
           pb.DATA_TYPE_BFLOAT16: np.dtype(np.uint16)}
# Keys and values of more bytes are streamed, in messages of about this size.
_CHUNK_BYTES = 2 << 20


class Session:
  """The keys and values of one context, of every layer of a model.

  Leaving a `with` block deletes it. Methods raise SessionError for what the
  server or the connection says, and ValueError for arrays that do not fit.

  Attributes:
    name: "sessions/...", for `open`.
    configuration: a pb.SessionConfiguration.
    token_counts: tokens of each layer, after all calls that succeeded.
  """

  def __init__(self, stub, session, timeout_s=60):
    """Of a pb.Session with its counts of tokens; `create` and `open` make one."""
    self._stub = stub
    self._timeout_s = timeout_s
    self._set(session)

  @classmethod
  def create(cls, stub, configuration, reserved_token_count=0, ttl_s=None,
             timeout_s=60):
    """A new one without tokens; ttl_s None is the server's default."""
    request = pb.CreateSessionRequest(
        configuration=configuration, reserved_token_count=reserved_token_count,
        ttl=_duration(ttl_s))
    return cls(stub, call(stub.CreateSession, request, timeout_s).session,
               timeout_s)

  @classmethod
  def open(cls, stub, name, timeout_s=60):
    """One that was created before, with all its tokens."""
    request = pb.GetSessionRequest(name=name)
    return cls(stub, call(stub.GetSession, request, timeout_s).session,
               timeout_s)

  def append(self, layer, keys, values):
    """Appends keys [T, K/V heads, dim] and values [T, K/V heads, value dim].

    What is large is streamed.
    """
    if keys.nbytes + values.nbytes > _CHUNK_BYTES:
      self.stream_append([(layer, keys, values)])
      return
    self.check_keys_values(keys, values)
    position = self._token_count(layer)
    request = pb.AppendKeysValuesRequest(
        session=self.name, layer=layer, token_count=len(keys),
        expected_position=position, key=keys.tobytes(), value=values.tobytes())
    try:
      self._call(self._stub.AppendKeysValues, request)
    except SessionError as error:
      if not error.has_appended(position, len(keys)):
        raise
    self.token_counts[layer] = position + len(keys)

  def _token_count(self, layer):
    if not 0 <= layer < len(self.token_counts):
      raise ValueError(f"the session has {len(self.token_counts)} layers; "
                       f"got layer {layer}")
    return self.token_counts[layer]

  def stream_append(self, parts, chunk_bytes=_CHUNK_BYTES):
    """Appends many tokens over one stream, messages arrive while others are copied.

    Repeated after an error, it sends only what the server does not have yet.

    Args:
      parts: (layer, keys, values) as with `append`, each layer at most once.
      chunk_bytes: keys and values of a message, about.
    """
    for layer, keys, values in parts:
      self._token_count(layer)
      self.check_keys_values(keys, values)
    try:
      self._stream(parts, [0] * len(parts), chunk_bytes)
    except SessionError as error:
      if error.reason != "POSITION_TAKEN":
        raise
      counts = self._get().layer_token_counts
      present = [counts[layer] - self.token_counts[layer]
                 for layer, _, _ in parts]
      if any(n > len(keys) for n, (_, keys, _) in zip(present, parts)):
        raise
      self._stream(parts, present, chunk_bytes)
    for layer, keys, _ in parts:
      self.token_counts[layer] += len(keys)

  def attend(self, layer, queries, key_range=None, scale=None,
             return_log_sum_exp=False):
    """Attends to what the layer has, or to a part of it, without appending.

    Args:
      queries: [M, query heads, dim]; for the mask, the layer's last tokens.
      key_range: (begin, end) of the tokens, or None for all.
      scale: of the scores; None is 1 / sqrt(dim).

    Returns:
      The output [M, query heads, value dim], and the fp32 log-sum-exp
      [M, query heads] or None: merge_attention_states takes both.
    """
    self.check_queries(queries)
    request = pb.AttendSessionRequest(
        session=self.name, layer=layer, token_count=len(queries), scale=scale,
        return_log_sum_exp=return_log_sum_exp, query=queries.tobytes())
    if key_range is not None:
      request.key_range.begin, request.key_range.end = key_range
    response = self._call(self._stub.AttendSession, request)
    return self.arrays_of(response, len(queries))

  def fork(self, token_count=None, reserved_token_count=0, ttl_s=None):
    """A new session with the same tokens, or the first of each layer.

    Both share memory. ttl_s None is as this one's.
    """
    response = self._call(self._stub.ForkSession, pb.ForkSessionRequest(
        name=self.name, token_count=token_count,
        reserved_token_count=reserved_token_count, ttl=_duration(ttl_s)))
    return Session(self._stub, response.session, self._timeout_s)

  def truncate(self, token_count):
    """Leaves each layer so many tokens at most."""
    self._set(self._call(self._stub.TruncateSession, pb.TruncateSessionRequest(
        name=self.name, token_count=token_count)).session)

  def renew(self, ttl_s=None):
    """Starts the time to live anew, and may change it."""
    self._call(self._stub.RenewSession, pb.RenewSessionRequest(
        name=self.name, ttl=_duration(ttl_s)))

  def refresh(self):
    """Counts tokens as the server does from now on; returns its pb.Session."""
    session = self._get()
    self._set(session)
    return session

  def delete(self):
    """Forgets the session, if the server still has it."""
    try:
      self._call(self._stub.DeleteSession,
                 pb.DeleteSessionRequest(name=self.name))
    except SessionError as error:
      if error.reason != "SESSION_NOT_FOUND":
        raise

  def rebuild(self, history):
    """Makes the session anew, under another name, after it is gone.

    After an error, repeat it.

    Args:
      history: (layer, keys, values) from the first token on, as with `append`,
        each layer at most once.
    """
    self.delete()
    self._set(self._call(self._stub.CreateSession, pb.CreateSessionRequest(
        configuration=self.configuration, ttl=self._ttl,
        reserved_token_count=self._reserved_token_count)).session)
    self.stream_append(history)

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    self.delete()

  def check_queries(self, queries):
    """Raises ValueError unless the queries have the session's shape and type."""
    c = self.configuration
    self._check("queries", queries, c.query_head_count, c.head_dim_qk)

  def check_keys_values(self, keys, values):
    """Raises ValueError unless they have the session's shapes and type."""
    c = self.configuration
    self._check("keys", keys, c.kv_head_count, c.head_dim_qk)
    self._check("values", values, c.kv_head_count, c.head_dim_v)
    if len(keys) != len(values):
      raise ValueError(f"there are {len(keys)} keys, but {len(values)} values")

  def arrays_of(self, response, token_count):
    """The output and the log-sum-exp, or None, of an answer."""
    c = self.configuration
    output = np.frombuffer(response.output, _DTYPES[c.data_type]).reshape(
        token_count, c.query_head_count, c.head_dim_v)
    if not response.log_sum_exp:
      return output, None
    return output, np.frombuffer(response.log_sum_exp, np.float32).reshape(
        token_count, c.query_head_count)

  def _check(self, name, array, heads, dim):
    dtype = _DTYPES[self.configuration.data_type]
    if array.dtype != dtype or array.shape[1:] != (heads, dim):
      raise ValueError(f"{name} must be {dtype} [tokens, {heads}, {dim}]; "
                       f"got {array.dtype} {list(array.shape)}")

  def _stream(self, parts, present, chunk_bytes):
    """Appends what is beyond the first `present` tokens of each part."""
    def messages():
      for (layer, keys, values), begin in zip(parts, present):
        token_bytes = keys[:1].nbytes + values[:1].nbytes
        step = max(1, chunk_bytes // max(1, token_bytes))
        for at in range(begin, len(keys), step):
          part = slice(at, min(at + step, len(keys)))
          yield pb.StreamAppendKeysValuesRequest(
              session=self.name, layer=layer, token_count=part.stop - at,
              expected_position=self.token_counts[layer] + at,
              key=keys[part].tobytes(), value=values[part].tobytes())
    self._call(self._stub.StreamAppendKeysValues, messages())

  def _get(self):
    return self._call(self._stub.GetSession,
                      pb.GetSessionRequest(name=self.name)).session

  def _call(self, method, request):
    return call(method, request, self._timeout_s)

  def _set(self, session):
    self.name = session.name
    self.configuration = session.configuration
    self.token_counts = list(session.layer_token_counts)
    self._reserved_token_count = session.reserved_token_count
    self._ttl = session.ttl


class Decoded(NamedTuple):
  """The answer to a step of T tokens.

  Attributes:
    output: [T, query heads, value dim]; 0 where the item failed.
    log_sum_exp: fp32 [T, query heads], -inf where the item failed, or None.
    errors: for each item None or its SessionError.
  """
  output: np.ndarray
  log_sum_exp: Optional[np.ndarray]
  errors: List[Optional[SessionError]]

  def checked(self):
    """The output, if no item failed; otherwise raises the first error."""
    for error in self.errors:
      if error is not None:
        raise error
    return self.output


def decode(stub, items, queries, keys, values, scale=None,
           return_log_sum_exp=False, timeout_s=60):
  """Appends tokens to layers of sessions and attends, in one step for all.

  May be repeated after an error, like Session.append; where only the answer of
  an attempt got lost, the queries attend to what is there.

  Args:
    items: (session, layer, token count): sessions of one configuration, each
      layer of a session at most once.
    queries: [T, query heads, dim], the items' tokens one after the other.
    keys: [T, K/V heads, dim].
    values: [T, K/V heads, value dim].
    scale: of the scores; None is 1 / sqrt(dim).

  Returns:
    A Decoded. An item that failed appended nothing, and has its error there.

  Raises:
    SessionError: what concerns all items.
    ValueError: arrays do not fit the sessions.
  """
  request = decode_request(pb.DecodeRequest, items, queries, keys, values, scale,
                           return_log_sum_exp)
  decoded = decoded_of(call(stub.Decode, request, timeout_s), request,
                       items[0][0])
  begin = 0
  for i, (session, layer, count) in enumerate(items):
    part = slice(begin, begin + count)
    begin += count
    error = decoded.errors[i]
    if error and error.has_appended(session.token_counts[layer], count):
      decoded.errors[i] = None
      decoded.output[part], log_sum_exp = session.attend(
          layer, queries[part], None, scale, return_log_sum_exp)
      if return_log_sum_exp:
        decoded.log_sum_exp[part] = log_sum_exp
    if decoded.errors[i] is None:
      session.token_counts[layer] += count
  return decoded


def decode_request(message, items, queries, keys, values, scale,
                   return_log_sum_exp, **fields):
  """A pb.DecodeRequest or, as `message` says, pb.StreamDecodeRequest."""
  if not items:
    raise ValueError("there are no items to decode")
  for session, layer, _ in items:
    session._token_count(layer)
  first = items[0][0]
  first.check_queries(queries)
  first.check_keys_values(keys, values)
  token_count = sum(count for _, _, count in items)
  if not token_count == len(queries) == len(keys):
    raise ValueError(f"the items have {token_count} tokens, but there are "
                     f"{len(queries)} queries and {len(keys)} keys")
  return message(
      items=[pb.DecodeItem(session=session.name, layer=layer, token_count=count,
                           expected_position=session.token_counts[layer])
             for session, layer, count in items],
      scale=scale, return_log_sum_exp=return_log_sum_exp,
      query=queries.tobytes(), key=keys.tobytes(), value=values.tobytes(),
      **fields)


def decoded_of(response, request, session):
  """The Decoded, with arrays of its own, of an answer and its request."""
  errors = [None] * len(request.items)
  for item_error in response.item_errors:
    errors[item_error.item_index] = SessionError.of_step(item_error.error)
  token_count = sum(item.token_count for item in request.items)
  if not all(errors):
    output, log_sum_exp = session.arrays_of(response, token_count)
    return Decoded(output.copy(),
                   None if log_sum_exp is None else log_sum_exp.copy(), errors)
  c = session.configuration
  output = np.zeros((token_count, c.query_head_count, c.head_dim_v),
                    _DTYPES[c.data_type])
  log_sum_exp = None
  if request.return_log_sum_exp:
    log_sum_exp = np.full(output.shape[:2], -np.inf, np.float32)
  return Decoded(output, log_sum_exp, errors)


def call(method, request, timeout_s):
  """Calls a method of the stub; its errors become SessionErrors."""
  try:
    return method(request, timeout=timeout_s)
  except grpc.RpcError as error:
    raise SessionError.of_call(error) from error


def _duration(seconds):
  if seconds is None:
    return None
  duration = duration_pb2.Duration()
  duration.FromNanoseconds(round(seconds * 1e9))
  return duration
