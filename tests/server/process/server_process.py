"""The real server as a process, with its log as events."""

import json
import os
import signal
import subprocess
import threading
import urllib.request

import grpc

BINARY = os.environ["ATTENTION_SERVER"]
START_TIMEOUT_S = 60

UNLIMITED = [("grpc.max_receive_message_length", -1),
             ("grpc.max_send_message_length", -1),
             ("grpc.use_local_subchannel_pool", 1)]


def run_to_the_end(*flags, timeout_s=60):
  """Runs the server with flags that make it exit; returns the process."""
  return subprocess.run([BINARY, *flags], capture_output=True, text=True,
                        timeout=timeout_s, check=False)


class ServerProcess:
  """Runs the server on free ports until the end of a `with` block.

  Every line that it logs must be a JSON object; `events` holds them.
  """

  def __init__(self, *flags, listen="127.0.0.1:0"):
    self.process = subprocess.Popen(
        [BINARY, f"--listen={listen}", "--metrics_address=127.0.0.1:0",
         "--backend=cpu", "--log_format=json", *flags],
        stderr=subprocess.PIPE, text=True)
    self.events = []
    self._changed = threading.Condition()
    self._ended = False
    self._reader = threading.Thread(target=self._read, daemon=True)
    self._reader.start()
    self.metrics_address = self.wait_for("serving metrics")["address"]
    self.addresses = [e["address"] for e in self.events
                      if e["message"] == "listening"]
    self.address = self.addresses[0]

  def _read(self):
    for line in self.process.stderr:
      event = json.loads(line)
      with self._changed:
        self.events.append(event)
        self._changed.notify_all()
    with self._changed:
      self._ended = True
      self._changed.notify_all()

  def wait_for(self, message, timeout_s=START_TIMEOUT_S):
    """The first event with this message."""
    def found():
      return [e for e in self.events if e["message"] == message]
    with self._changed:
      self._changed.wait_for(lambda: found() or self._ended, timeout_s)
      events = found()
    assert events, f"no event {message!r} in {self.events}"
    return events[0]

  def channel(self, address=None, options=()):
    return grpc.insecure_channel(address or self.address,
                                 options=[*UNLIMITED, *options])

  def metrics(self):
    """Values by series, as they are written: name{label="value"}."""
    with urllib.request.urlopen(f"http://{self.metrics_address}/metrics",
                                timeout=60) as answer:
      lines = answer.read().decode().splitlines()
    series = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in series}

  def signal(self, number=signal.SIGTERM):
    self.process.send_signal(number)

  def wait(self, timeout_s=60):
    """Exit status, once all of the log has been read."""
    status = self.process.wait(timeout_s)
    self._reader.join()
    return status

  def stop(self):
    self.signal()
    return self.wait()

  def memory_kib(self, field):
    """VmRSS (now) or VmHWM (at most so far)."""
    with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as status:
      for line in status:
        if line.startswith(field + ":"):
          return int(line.split()[1])
    raise AssertionError(f"no {field} of the server")

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    if self.process.poll() is None:
      self.process.kill()
    self.process.wait()
    self._reader.join()
    self.process.stderr.close()
