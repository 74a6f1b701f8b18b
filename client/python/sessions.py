"""Keys and values that stay on the server, with numpy.

    session = Session.create(stub, configuration)
    session.append(layer, keys, values)         # [T, kv heads, dim]
    output, _ = session.attend(layer, queries)  # [T, heads, dim]
    step = decode(stub, [(a, layer, 1), (b, layer, 1)], queries, keys, values)

A session counts the tokens of each layer here, too, and says with each call where
they are to go: a call that failed may be repeated as it is, tokens are appended
at most once. A layer has one writer. Arrays are fp32, fp16, or for bf16 its bits
as uint16.

A server that restarts has forgotten its sessions; SessionError.is_gone then says
so, and `rebuild` makes the session again from keys and values that the caller
kept, or computes anew.
"""

import collections

import grpc
import numpy as np

from attention.v1 import attention_pb2 as pb

_DTYPES = {pb.DATA_TYPE_FLOAT32: np.float32, pb.DATA_TYPE_FLOAT16: np.float16,
           pb.DATA_TYPE_BFLOAT16: np.uint16}
# What is larger is streamed, in messages of this size.
_CHUNK_BYTES = 2 << 20

Decoded = collections.namedtuple("Decoded", "output log_sum_exp errors")


class SessionError(Exception):
  """Why a call, or one item of a call, failed.

  Attributes:
    code: a grpc.StatusCode.
    reason: one of AttentionService's, or "".
    facts: what goes with the reason, e.g. {"replica": "b"}, as strings.
  """

  def __init__(self, code, message, reason, facts):
    super().__init__(f"{code.name}: {message}")
    self.code = code
    self.reason = reason
    self.facts = facts

  @property
  def is_gone(self):
    """Whether the session's tokens are gone; Session.rebuild helps."""
    return self.reason in ("SESSION_NOT_FOUND", "SESSION_LOST")

  def has_appended(self, position, token_count):
    """Whether the tokens are there: the answer of a call before got lost."""
    return (self.reason == "POSITION_TAKEN" and
            self.facts.get("token_count") == str(position + token_count))


class Session:
  """The keys and values of one context, of every layer of a model."""

  def __init__(self, stub, session, timeout_s=60):
    """Of a pb.Session with its counts of tokens; `create` and `open` make one."""
    self.stub = stub
    self._timeout_s = timeout_s
    self._set(session)

  @classmethod
  def create(cls, stub, configuration, reserved_token_count=0, timeout_s=60):
    request = pb.CreateSessionRequest(
        configuration=configuration, reserved_token_count=reserved_token_count)
    response = _call(stub.CreateSession, request, timeout_s)
    return cls(stub, response.session, timeout_s)

  @classmethod
  def open(cls, stub, name, timeout_s=60):
    """One that was created before, with all its tokens."""
    response = _call(stub.GetSession, pb.GetSessionRequest(name=name), timeout_s)
    return cls(stub, response.session, timeout_s)

  def append(self, layer, keys, values):
    """Appends keys [T, kv heads, dim] and values [T, kv heads, value dim]."""
    position = self.token_counts[layer]
    count = len(keys)
    keys, values = self._bytes(keys), self._bytes(values)
    try:
      if len(keys) + len(values) <= _CHUNK_BYTES:
        self._call(self.stub.AppendKeysValues, pb.AppendKeysValuesRequest(
            session=self.name, layer=layer, token_count=count,
            expected_position=position, key=keys, value=values))
      else:
        self._stream(layer, position, count, keys, values)
    except SessionError as error:
      if not error.has_appended(position, count):
        raise
    self.token_counts[layer] += count

  def attend(self, layer, queries, key_range=None, scale=None,
             return_log_sum_exp=False):
    """Attends to what the layer has, or to a (begin, end) of it.

    Args:
      queries: [M, heads, dim]; the layer's last tokens, for the mask.

    Returns:
      The output [M, heads, value dim], and the log-sum-exp [M, heads] or None.
    """
    request = pb.AttendSessionRequest(
        session=self.name, layer=layer, token_count=len(queries), scale=scale,
        return_log_sum_exp=return_log_sum_exp, query=self._bytes(queries))
    if key_range is not None:
      request.key_range.begin, request.key_range.end = key_range
    response = self._call(self.stub.AttendSession, request)
    return self._arrays(response, len(queries))

  def fork(self, token_count=None, reserved_token_count=0):
    """A new session with the same tokens, or with the first of each layer."""
    response = self._call(self.stub.ForkSession, pb.ForkSessionRequest(
        name=self.name, token_count=token_count,
        reserved_token_count=reserved_token_count))
    return Session(self.stub, response.session, self._timeout_s)

  def truncate(self, token_count):
    """Leaves each layer so many tokens at most."""
    response = self._call(self.stub.TruncateSession, pb.TruncateSessionRequest(
        name=self.name, token_count=token_count))
    self._set(response.session)

  def renew(self):
    """Starts the time to live anew."""
    self._call(self.stub.RenewSession, pb.RenewSessionRequest(name=self.name))

  def refresh(self):
    """Counts tokens as the server does from now on; returns its pb.Session."""
    response = self._call(self.stub.GetSession,
                          pb.GetSessionRequest(name=self.name))
    self._set(response.session)
    return response.session

  def delete(self):
    """Forgets the session, if the server still has it."""
    try:
      self._call(self.stub.DeleteSession,
                 pb.DeleteSessionRequest(name=self.name))
    except SessionError as error:
      if error.reason != "SESSION_NOT_FOUND":
        raise

  def rebuild(self, history):
    """Makes the session anew, under another name, after it is gone.

    Args:
      history: (layer, keys, values) of all tokens, each layer's in order.
    """
    self.delete()
    response = self._call(self.stub.CreateSession, pb.CreateSessionRequest(
        configuration=self.configuration,
        reserved_token_count=self._reserved_token_count))
    self._set(response.session)
    for layer, keys, values in history:
      self.append(layer, keys, values)

  def _set(self, session):
    self.name = session.name
    self.configuration = session.configuration
    self.token_counts = list(session.layer_token_counts)
    self._reserved_token_count = session.reserved_token_count

  def _call(self, method, request):
    return _call(method, request, self._timeout_s)

  def _stream(self, layer, position, count, keys, values):
    """A part of the tokens may be there after an error; they are skipped."""
    present = self.refresh().layer_token_counts[layer] - position
    self.token_counts[layer] = position
    if not 0 <= present < count:
      present = 0  # the server says what is wrong
    step = max(1, _CHUNK_BYTES * count // (len(keys) + len(values)))

    def messages():
      for begin in range(present, count, step):
        end = min(begin + step, count)
        part = [slice(len(x) // count * begin, len(x) // count * end)
                for x in (keys, values)]
        yield pb.StreamAppendKeysValuesRequest(
            session=self.name, layer=layer, token_count=end - begin,
            expected_position=position + begin, key=keys[part[0]],
            value=values[part[1]])

    self._call(self.stub.StreamAppendKeysValues, messages())

  def _bytes(self, array):
    dtype = _DTYPES[self.configuration.data_type]
    if array.dtype != dtype:
      raise ValueError(f"the session has elements of {np.dtype(dtype)}; "
                       f"got {array.dtype}")
    return array.tobytes()

  def _arrays(self, response, token_count):
    c = self.configuration
    output = np.frombuffer(response.output, _DTYPES[c.data_type]).reshape(
        token_count, c.query_head_count, c.head_dim_v)
    log_sum_exp = None
    if response.log_sum_exp:
      log_sum_exp = np.frombuffer(response.log_sum_exp, np.float32).reshape(
          token_count, c.query_head_count)
    return output, log_sum_exp


def decode(stub, items, queries, keys, values, scale=None,
           return_log_sum_exp=False, timeout_s=60):
  """Appends tokens to layers of sessions and attends, in one step for all.

  Args:
    items: (session, layer, token count), all sessions of one configuration.
    queries, keys, values: [T, heads, dim], the items' tokens one after the other.

  Returns:
    A Decoded: output [T, heads, value dim], log-sum-exp [T, heads] or None, and
    per item None or its SessionError. Of items that failed the output is 0.
  """
  first = items[0][0]
  positions = _positions(items)
  request = pb.DecodeRequest(
      items=[pb.DecodeItem(session=session.name, layer=layer, token_count=count,
                           expected_position=position)
             for (session, layer, count), position in zip(items, positions)],
      scale=scale, return_log_sum_exp=return_log_sum_exp,
      query=first._bytes(queries), key=first._bytes(keys),
      value=first._bytes(values))
  response = _call(stub.Decode, request, timeout_s)
  errors = [None] * len(items)
  for item_error in response.item_errors:
    e = item_error.error
    errors[item_error.item_index] = SessionError(
        _status_code(e.code), e.message, e.reason, dict(e.metadata))
  if all(errors):
    c = first.configuration
    output = np.zeros((len(queries), c.query_head_count, c.head_dim_v),
                      _DTYPES[c.data_type])
    log_sum_exp = None
    if return_log_sum_exp:
      log_sum_exp = np.full(output.shape[:2], -np.inf, np.float32)
  else:
    output, log_sum_exp = (
        x if x is None else x.copy()
        for x in first._arrays(response, len(queries)))
  begin = 0
  for i, (session, layer, count) in enumerate(items):
    part = slice(begin, begin + count)
    begin += count
    if errors[i] is not None and errors[i].has_appended(positions[i], count):
      # Only the answer of an earlier attempt got lost.
      errors[i] = None
      output[part], part_log_sum_exp = session.attend(
          layer, queries[part], scale=scale,
          return_log_sum_exp=return_log_sum_exp)
      if return_log_sum_exp:
        log_sum_exp[part] = part_log_sum_exp
    if errors[i] is None:
      session.token_counts[layer] += count
  return Decoded(output, log_sum_exp, errors)


def _positions(items):
  """Where each item's tokens go: behind those of items before it."""
  counts = collections.Counter()
  positions = []
  for session, layer, count in items:
    positions.append(session.token_counts[layer] + counts[session.name, layer])
    counts[session.name, layer] += count
  return positions


def _call(method, request, timeout_s):
  try:
    return method(request, timeout=timeout_s)
  except grpc.RpcError as error:
    reason, facts = _error_info(error)
    raise SessionError(error.code(), error.details(), reason, facts) from error


def _status_code(number):
  for code in grpc.StatusCode:
    if code.value[0] == number:
      return code
  return grpc.StatusCode.UNKNOWN


def _error_info(error):
  """Reason and facts of a call's google.rpc.ErrorInfo, read without its stubs."""
  details = dict(error.trailing_metadata() or ()).get(
      "grpc-status-details-bin", b"")
  for number, detail in _fields(details):
    if number != 3:  # google.rpc.Status.details
      continue
    any_fields = dict(_fields(detail))
    if not any_fields.get(1, b"").endswith(b"google.rpc.ErrorInfo"):
      continue
    reason, facts = "", {}
    for info_number, value in _fields(any_fields.get(2, b"")):
      if info_number == 1:
        reason = value.decode()
      elif info_number == 3:
        entry = dict(_fields(value))
        facts[entry.get(1, b"").decode()] = entry.get(2, b"").decode()
    return reason, facts
  return "", {}


def _fields(message):
  """(number, value) of each field of a message of integers, strings, messages."""
  at = 0

  def varint():
    nonlocal at
    value = shift = 0
    while True:
      byte = message[at]
      at += 1
      value |= (byte & 0x7F) << shift
      shift += 7
      if byte < 0x80:
        return value

  while at < len(message):
    tag = varint()
    value = varint()
    if tag & 7 == 2:
      at += value
      value = message[at - value:at]
    yield tag >> 3, value
