"""Messages over one stream, which do not wait for each other."""

import concurrent.futures
import itertools
import queue
import threading

import grpc


class TaggedStream:
  """Tells answers, which come in any order, apart by their tags.

  Leaving a `with` block waits for all answers, or cancels them after an exception.
  """

  def __init__(self, method, error_class, timeout_s):
    """`method` is the stub's; errors are of `error_class`, a CallError.

    timeout_s is that of the whole stream; None: none.
    """
    self._error_class = error_class
    self._requests = queue.SimpleQueue()  # None ends it
    self._tags = itertools.count()
    self._lock = threading.Lock()
    self._waiting = {}  # tag: (future, result_of)
    self._end = None  # the error that later messages get
    self._call = method(iter(self._requests.get, None), timeout=timeout_s)
    self._reader = threading.Thread(target=self._read, daemon=True)
    self._reader.start()

  def _new_tag(self):
    return next(self._tags)

  def _send(self, request, result_of):
    """Returns a future of what result_of makes of the answer."""
    future = concurrent.futures.Future()
    future.set_running_or_notify_cancel()  # too late to cancel
    with self._lock:
      if self._end is None:
        self._waiting[request.tag] = (future, result_of)
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
    end = self._error_class(grpc.StatusCode.CANCELLED, "the stream has ended")
    try:
      for response in self._call:
        with self._lock:
          future, result_of = self._waiting.pop(response.tag)
        if response.HasField("error"):
          future.set_exception(self._error_class.of_step(response.error))
        else:
          future.set_result(result_of(response))
    except grpc.RpcError as error:
      end = self._error_class.of_call(error)
    finally:
      with self._lock:
        self._end = end
        waiting = list(self._waiting.values())
        self._waiting.clear()
      self._requests.put(None)  # lets gRPC's thread go
      for future, _ in waiting:
        future.set_exception(end)
