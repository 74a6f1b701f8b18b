"""Steps of sessions over one stream, which do not wait for each other.

    with DecodeStream(stub) as stream:
      steps = [stream.send([(session, layer, 1)], q, k, v) for q, k, v in tokens]
      outputs = [step.result().output for step in steps]
"""

import concurrent.futures
import itertools
import queue
import threading

import grpc

from attention.v1 import attention_pb2 as pb
from session_errors import SessionError
from sessions import decode_request, decoded_of


class DecodeStream:
  """A pipeline of steps: those of one session keep their order.

  Those of different sessions overtake each other. The server takes
  ServerLimits.max_pipelined_messages at a time, further ones wait here. Leaving
  a `with` block waits for all answers, or cancels them after an exception.
  """

  def __init__(self, stub, timeout_s=None):
    """timeout_s is that of the whole stream; None: none."""
    self._requests = queue.SimpleQueue()  # None ends it
    self._tags = itertools.count()
    self._lock = threading.Lock()
    self._waiting = {}  # tag: (future, request, session)
    self._end = None  # the SessionError that later steps get
    self._call = stub.StreamDecode(iter(self._requests.get, None),
                                   timeout=timeout_s)
    self._reader = threading.Thread(target=self._read, daemon=True)
    self._reader.start()

  def send(self, items, queries, keys, values, scale=None,
           return_log_sum_exp=False):
    """Sends a step; arguments are those of `decode`.

    The tokens count as appended at once, so that the next step may follow. A step
    is not repeated: after an error of it, or of the stream, wait for what is
    under way, then `refresh` its sessions.

    Returns:
      A concurrent.futures.Future of a Decoded. It raises SessionError for what
      concerns all items of the step, or the stream.

    Raises:
      ValueError: arrays do not fit the sessions.
    """
    tag = next(self._tags)
    request = decode_request(pb.StreamDecodeRequest, items, queries, keys, values,
                             scale, return_log_sum_exp, tag=tag)
    for session, layer, count in items:
      session.token_counts[layer] += count
    future = concurrent.futures.Future()
    future.set_running_or_notify_cancel()  # too late to cancel
    with self._lock:
      if self._end is None:
        self._waiting[tag] = (future, request, items[0][0])
        self._requests.put(request)
        return future
    future.set_exception(self._end)
    return future

  def close(self):
    """Sends no more, and waits for all answers."""
    self._requests.put(None)
    self._reader.join()

  def __enter__(self):
    return self

  def __exit__(self, exception_type, *unused):
    if exception_type is not None:
      self._call.cancel()
    self.close()

  def _read(self):
    end = SessionError(grpc.StatusCode.CANCELLED, "the stream has ended")
    try:
      for response in self._call:
        with self._lock:
          future, request, session = self._waiting.pop(response.tag)
        if response.HasField("error"):
          future.set_exception(SessionError.of_step(response.error))
        else:
          future.set_result(decoded_of(response, request, session))
    except grpc.RpcError as error:
      end = SessionError.of_call(error)
    finally:
      with self._lock:
        self._end = end
        waiting = list(self._waiting.values())
        self._waiting.clear()
      self._requests.put(None)  # lets gRPC's thread go
      for future, _, _ in waiting:
        future.set_exception(end)
