"""Why calls fail; see AttentionService in attention.proto."""

import grpc


class CallError(Exception):
  """Why a call, a message of a stream, or one item of either, failed.

  Attributes:
    code: a grpc.StatusCode.
    reason: one of AttentionService's, or "" when it was not the server that
      refused, as when there is no connection.
    facts: what goes with the reason, e.g. {"replica": "b"}, as strings.
    retry_delay_s: after which another attempt is worth it, or None.
  """

  def __init__(self, code, message, reason="", facts=None, retry_delay_s=None):
    super().__init__(f"{reason or code.name}: {message}")
    self.code = code
    self.reason = reason
    self.facts = facts or {}
    self.retry_delay_s = retry_delay_s

  @classmethod
  def of_call(cls, error):
    """Of a grpc.RpcError."""
    trailers = dict(error.trailing_metadata() or ())
    reason, facts = _error_info(trailers.get("grpc-status-details-bin", b""))
    delay_ms = trailers.get("grpc-retry-pushback-ms")
    return cls(error.code(), error.details(), reason, facts,
               None if delay_ms is None else int(delay_ms) / 1000)

  @classmethod
  def of_step(cls, error):
    """Of a pb.StepError."""
    delay = error.retry_delay
    return cls(_CODES.get(error.code, grpc.StatusCode.UNKNOWN), error.message,
               error.reason, dict(error.metadata),
               delay.seconds + delay.nanos / 1e9
               if error.HasField("retry_delay") else None)


_CODES = {code.value[0]: code for code in grpc.StatusCode}


def _error_info(status):
  """Reason and metadata of the ErrorInfo in a serialised google.rpc.Status.

  Reads the bytes itself: googleapis' stubs are no part of protobuf or gRPC.
  """
  for number, detail in _fields(status):
    if number != 3:  # Status.details
      continue
    any_fields = dict(_fields(detail))
    if not any_fields.get(1, b"").endswith(b"/google.rpc.ErrorInfo"):
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
    if tag & 7 == 2:  # as many bytes follow
      at += value
      value = message[at - value:at]
    yield tag >> 3, value
