"""Servers as processes, for tests of client programs."""

import os
import re
import subprocess
import threading

_LISTENING = re.compile(r"listening.*?address\"?[=:]\"?([^\s\",}]+)")


class ServerProcess:
  """Runs a server until the end of a `with` block.

  `address` is what the server reported to listen on. The puppet serves until
  its standard input ends, the real server until SIGTERM; both get both.
  """

  def __init__(self, command, startup_timeout_s=60):
    self._process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True)
    self.log = []
    self.address = None
    watchdog = threading.Timer(startup_timeout_s, self._process.kill)
    watchdog.start()
    for line in self._process.stdout:
      self.log.append(line)
      match = _LISTENING.search(line)
      if match:
        self.address = match.group(1)
        break
    watchdog.cancel()
    if self.address is None:
      self._process.wait()
      raise RuntimeError("the server did not start:\n" + "".join(self.log))
    # Keeps the pipe from filling up.
    self._reader = threading.Thread(
        target=lambda: self.log.extend(self._process.stdout), daemon=True)
    self._reader.start()

  def kill(self):
    """Ends the server at once, as a crash does."""
    self._process.kill()
    self._process.wait()

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    self._process.stdin.close()
    self._process.terminate()
    self._process.wait(timeout=60)
    self._reader.join()
    self._process.stdout.close()


def puppet(mode):
  return ServerProcess([os.environ["ATTENTION_PUPPET_SERVER"], mode])


def have_real_server():
  return os.path.exists(os.environ.get("ATTENTION_SERVER", ""))


def real(*flags):
  """The real server; flags of one's own win over those here."""
  return ServerProcess([
      os.environ["ATTENTION_SERVER"], "--listen=127.0.0.1:0",
      "--metrics_address=127.0.0.1:0", "--backend=cpu", "--log_format=text",
      *flags])
