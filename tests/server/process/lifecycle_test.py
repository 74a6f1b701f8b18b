"""Starting, answering, draining and stopping the real program."""

import collections
import itertools
import json
import signal
import socket
import subprocess
import threading
import time

import attention_requests
import grpc
import numpy as np
import pytest
from attention.v1 import attention_pb2 as pb
from attention.v1 import attention_pb2_grpc as rpc
from grpc.health.v1 import health_pb2
from grpc.health.v1 import health_pb2_grpc
from server_process import BINARY, ServerProcess, run_to_the_end


def test_answers_over_tcp_and_unix_socket(tmp_path):
  path = tmp_path / "s"
  tensors = attention_requests.random_tensors()
  with ServerProcess(listen=f"127.0.0.1:0,unix:{path}") as server:
    assert server.addresses[1] == f"unix:{path}"
    for address in server.addresses:
      with server.channel(address) as channel:
        response = rpc.AttentionServiceStub(channel).ComputeAttention(
            attention_requests.make(*tensors), timeout=60)
      np.testing.assert_allclose(attention_requests.output(response),
                                 attention_requests.expected(*tensors),
                                 rtol=0, atol=1e-5)
    assert server.stop() == 0
    assert server.events[-1]["message"] == "stopped"
    assert server.events[-1]["drained"] == "true"
  assert not path.exists()


def test_sigterm_under_load_fails_no_call():
  """Callers stop when health says so; none of their calls fails."""
  not_serving = threading.Event()
  failures = []
  counts = []

  def watch(server):
    with server.channel() as channel:
      try:
        for status in health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(), timeout=120):
          if status.status == health_pb2.HealthCheckResponse.NOT_SERVING:
            break
      finally:
        not_serving.set()

  def call(server):
    count = 0
    with server.channel() as channel:
      stub = rpc.AttentionServiceStub(channel)
      while not not_serving.is_set():
        try:
          stub.ComputeAttention(attention_requests.small(), timeout=60)
          count += 1
        except grpc.RpcError as error:
          failures.append(error)
        if count == 20:
          enough.release()
    counts.append(count)

  enough = threading.Semaphore(0)
  with ServerProcess() as server:
    threads = [threading.Thread(target=call, args=[server]) for _ in range(6)]
    threads.append(threading.Thread(target=watch, args=[server]))
    for thread in threads:
      thread.start()
    for _ in range(6):
      assert enough.acquire(timeout=60)
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    for thread in threads:
      thread.join()
  assert not failures
  assert min(counts) >= 20


def test_callers_that_take_no_notice_are_answered_or_refused():
  """They call until nobody listens: an answer, or the advice to go elsewhere."""
  codes = collections.Counter()

  def call(server):
    with server.channel() as channel:
      stub = rpc.AttentionServiceStub(channel)
      for count in itertools.count(1):
        try:
          stub.ComputeAttention(attention_requests.small(), timeout=60)
          codes["OK"] += 1
        except grpc.RpcError as error:
          codes[error.code().name] += 1
        if count == 20:
          enough.release()
        if server.process.poll() is not None:
          return

  enough = threading.Semaphore(0)
  with ServerProcess("--drain_timeout=60s") as server:
    threads = [threading.Thread(target=call, args=[server]) for _ in range(6)]
    for thread in threads:
      thread.start()
    for _ in threads:
      assert enough.acquire(timeout=60)
    start = time.monotonic()
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert time.monotonic() - start < 30
    for thread in threads:
      thread.join()
    assert server.events[-1]["drained"] == "true"
  assert set(codes) == {"OK", "UNAVAILABLE"}, codes


def test_rolling_restart_fails_no_call():
  """One of two servers goes; clients with health checking do not notice."""
  config = json.dumps({
      "loadBalancingConfig": [{"round_robin": {}}],
      "healthCheckConfig": {"serviceName": "attention.v1.AttentionService"}})
  stop = threading.Event()
  failures = []
  devices = []

  def call(target):
    with grpc.insecure_channel(
        target, options=[("grpc.service_config", config),
                         ("grpc.use_local_subchannel_pool", 1)]) as channel:
      stub = rpc.AttentionServiceStub(channel)
      count = 0
      while not stop.is_set():
        try:
          stub.ComputeAttention(attention_requests.small(), timeout=60,
                                wait_for_ready=True)
          count += 1
        except grpc.RpcError as error:
          failures.append(error)
        if count == 40:
          busy.release()
      devices.append(count)

  busy = threading.Semaphore(0)
  with ServerProcess() as first, ServerProcess() as second:
    target = f"ipv4:{first.address},{second.address}"
    threads = [threading.Thread(target=call, args=[target]) for _ in range(4)]
    for thread in threads:
      thread.start()
    for _ in threads:
      assert busy.acquire(timeout=60)
    assert first.stop() == 0
    stop.set()
    for thread in threads:
      thread.join()
    assert not failures
    assert second.stop() == 0


def test_finishes_a_long_request_after_sigterm():
  request = attention_requests.endless(seconds_at_gigaflops=100)
  with ServerProcess() as server, server.channel() as channel:
    stub = rpc.AttentionServiceStub(channel)
    call = stub.ComputeAttention.future(request, timeout=300)
    stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=60)
    server.signal(signal.SIGTERM)
    response = call.result()
    assert np.all(np.abs(attention_requests.output(response) - 1) < 1e-4)
    assert server.wait() == 0


@pytest.mark.parametrize("hello", [
    b"",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
], ids=["no preface", "no settings", "idle"])
def test_silent_peers_do_not_delay_the_exit(hello):
  with ServerProcess("--drain_timeout=60s", "--drain_delay=0s") as server:
    host, port = server.address.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as peer, \
        server.channel() as channel:
      peer.sendall(hello)
      rpc.AttentionServiceStub(channel).GetServerInfo(
          pb.GetServerInfoRequest(), timeout=60)
      start = time.monotonic()
      server.signal(signal.SIGTERM)
      assert server.wait() == 0
      assert time.monotonic() - start < 15
    assert server.events[-1]["drained"] == "true"


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_stops_at_once(second):
  with ServerProcess("--drain_delay=5m", "--drain_timeout=10m") as server:
    server.signal(signal.SIGINT)
    server.wait_for("draining")
    server.signal(second)
    assert server.wait() == 128 + second
    assert server.events[-1]["message"] == "stopping at once"


def test_drain_timeout_ends_a_request_that_takes_too_long():
  request = attention_requests.endless(seconds_at_gigaflops=20_000)
  with ServerProcess("--drain_timeout=100ms", "--drain_delay=0s",
                     "--max_request_flops=1e15") as server:
    with server.channel() as channel:
      stub = rpc.AttentionServiceStub(channel)
      call = stub.ComputeAttention.future(request, timeout=300)
      stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=60)
      server.signal(signal.SIGTERM)
      assert call.exception(timeout=120) is not None
      assert server.wait() == 1


def test_port_in_use():
  with ServerProcess() as server:
    second = run_to_the_end(f"--listen={server.address}",
                            "--metrics_address=", "--backend=cpu")
    assert second.returncode == 1
    assert server.address in second.stderr
    assert "Address already in use" in second.stderr


def test_metrics_port_in_use():
  with ServerProcess() as server:
    second = run_to_the_end("--listen=127.0.0.1:0", "--backend=cpu",
                            f"--metrics_address={server.metrics_address}")
    assert second.returncode == 1
    assert server.metrics_address in second.stderr


@pytest.mark.parametrize("flags,texts", [
    (["--listen=nowhere"], ["--listen", "nowhere"]),
    (["--listen="], ["--listen"]),
    (["--backend=abacus"], ["backend", "abacus"]),
    (["--max_message_bytes=3GiB"], ["--max_message_bytes", "3221225472"]),
    (["--max_message_bytes=lots"], ["max_message_bytes", "lots"]),
    (["--host_memory_budget=-1GiB"], ["host_memory_budget", "-1GiB"]),
    (["--host_memory_budget=1GiB", "--session_memory=2GiB"],
     ["memory of sessions", "1073741824", "2147483648"]),
    (["--session_spill_memory=1000TiB"], ["spill", str(1000 << 40)]),
    (["--max_batch_requests=0"], ["--max_batch_requests", "0"]),
    (["--max_queued_requests=x"], ["max_queued_requests", "x"]),
    (["--cpu_threads=-2"], ["--cpu_threads", "-2"]),
    (["--max_queue_delay=-1s"], ["--max_queue_delay", "-1s"]),
    (["--drain_timeout=inf"], ["--drain_timeout", "inf"]),
    (["--max_request_flops=nan"], ["--max_request_flops"]),
    (["--max_config_labels=0"], ["--max_config_labels", "0"]),
    (["--log_format=xml"], ["--log_format", "xml"]),
    (["--log_level=chatty"], ["--log_level", "chatty"]),
    (["--metrics_address=nowhere"], ["nowhere"]),
    (["--no_such_flag=1"], ["no_such_flag"]),
    (["argument"], ["argument"]),
])
def test_bad_flags_are_named(flags, texts):
  process = run_to_the_end("--listen=127.0.0.1:0", "--metrics_address=",
                           "--backend=cpu", *flags)
  assert process.returncode == 1
  for text in texts:
    assert text in process.stderr


def test_help_and_version():
  version = run_to_the_end("--version")
  assert version.returncode == 0
  assert version.stdout.startswith("attention-server 0.")
  help_process = run_to_the_end("--help")
  assert help_process.returncode == 0
  text = help_process.stdout
  for flag in ["listen", "backend", "max_message_bytes", "drain_timeout",
               "device_memory_budget"]:
    assert f"--{flag} (" in text


def test_flags_from_a_file(tmp_path):
  flagfile = tmp_path / "flags"
  flagfile.write_text("--max_message_bytes=64MiB\n--max_queue_delay=2ms\n")
  with ServerProcess(f"--flagfile={flagfile}") as server:
    with server.channel() as channel:
      limits = rpc.AttentionServiceStub(channel).GetServerInfo(
          pb.GetServerInfoRequest(), timeout=60).limits
    assert limits.max_message_bytes == 64 << 20
    assert limits.max_queue_delay.nanos == 2_000_000


def test_logs_one_line_per_refusal_class():
  with ServerProcess() as server, server.channel() as channel:
    stub = rpc.AttentionServiceStub(channel)
    for _ in range(50):
      with pytest.raises(grpc.RpcError):
        stub.ComputeAttention(pb.ComputeAttentionRequest(), timeout=60)
    assert server.stop() == 0
    refusals = [e for e in server.events if e["message"] == "request refused"]
    assert len(refusals) in (1, 2)
    assert refusals[0]["class"] == "INVALID_REQUEST"
    for event in server.events:
      assert {"time", "level", "message"} <= set(event)


def test_text_log():
  process = subprocess.Popen(
      [BINARY, "--listen=127.0.0.1:0", "--metrics_address=", "--backend=cpu"],
      stderr=subprocess.PIPE, text=True)
  try:
    for line in process.stderr:
      if " info listening address=127.0.0.1:" in line:
        break
    port = int(line.rsplit(":", 1)[1])
    socket.create_connection(("127.0.0.1", port), timeout=60).close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
  finally:
    process.kill()
    process.wait()
    process.stderr.close()
