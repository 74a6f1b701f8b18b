"""The real Prometheus scrapes the real server."""

import json
import re
import shutil
import subprocess
import threading
import urllib.parse
import urllib.request

import attention_requests
import grpc
import pytest
from attention.v1 import attention_pb2 as pb
from attention.v1 import attention_pb2_grpc as rpc
from server_process import ServerProcess

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None,
                                reason="prometheus is not installed")

CONFIG = """
global:
  scrape_interval: 1s
scrape_configs:
  - job_name: attention
    static_configs:
      - targets: ["{target}"]
"""


class Prometheus:
  """Scrapes one target every second until the end of a `with` block."""

  def __init__(self, folder, target):
    config = folder / "prometheus.yml"
    config.write_text(CONFIG.format(target=target))
    self._process = subprocess.Popen(
        ["prometheus", f"--config.file={config}",
         f"--storage.tsdb.path={folder / 'data'}",
         "--web.listen-address=127.0.0.1:0"],
        stderr=subprocess.PIPE, text=True)
    for line in self._process.stderr:
      match = re.search(r'msg="Listening on" address=(\S+)', line)
      if match:
        self._address = match.group(1)
        break
    self._reader = threading.Thread(target=self._process.stderr.read, daemon=True)
    self._reader.start()

  def query(self, expression):
    """Label sets and values of an instant query."""
    query = urllib.parse.urlencode({"query": expression})
    url = f"http://{self._address}/api/v1/query?{query}"
    with urllib.request.urlopen(url, timeout=10) as reply:
      result = json.load(reply)["data"]["result"]
    return [(r["metric"], float(r["value"][1])) for r in result]

  def wait_for(self, expression, value, timeout_s=60):
    """Until the only result of the query is `value`."""
    tick = threading.Event()
    result = None
    for _ in range(timeout_s * 5):
      try:
        result = self.query(expression)
      except OSError:
        pass  # not up yet
      if result and [v for _, v in result] == [value]:
        return
      tick.wait(0.2)
    raise AssertionError(f"{expression} is {result}, not {value}")

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    self._process.terminate()
    self._process.wait(60)
    self._reader.join()
    self._process.stderr.close()


def scrape(server):
  with urllib.request.urlopen(f"http://{server.metrics_address}/metrics",
                              timeout=10) as reply:
    return reply.read().decode()


def test_prometheus_sees_every_request(tmp_path):
  with ServerProcess() as server, server.channel() as channel:
    with Prometheus(tmp_path, server.metrics_address) as prometheus:
      prometheus.wait_for("up", 1)
      stub = rpc.AttentionServiceStub(channel)
      for _ in range(20):
        stub.ComputeAttention(attention_requests.small(), timeout=60)
      for _ in range(3):
        with pytest.raises(grpc.RpcError):
          stub.ComputeAttention(pb.ComputeAttentionRequest(), timeout=60)
      prometheus.wait_for("attention_requests_started_total", 23)
      prometheus.wait_for('sum(attention_requests_total{code="OK"})', 20)
      prometheus.wait_for(
          'sum(attention_requests_total{code="INVALID_ARGUMENT"})', 3)
      # Conservation, and gauges back at 0.
      prometheus.wait_for("sum(attention_requests_started_total) - "
                          "sum(attention_requests_total)", 0)
      prometheus.wait_for("sum(attention_requests_in_flight)", 0)
      prometheus.wait_for("sum(attention_queue_bytes)", 0)
      for phase in ["receive", "queue", "compute", "send", "total"]:
        [(_, count)] = prometheus.query(
            f'sum(attention_phase_duration_seconds_count{{phase="{phase}"}})')
        assert count >= 1, phase
      [(_, p99)] = prometheus.query(
          "histogram_quantile(0.99, sum by (le) "
          '(attention_phase_duration_seconds_bucket{phase="total"}))')
      assert 50e-6 < p99 < 64
      [(labels, value)] = prometheus.query("attention_build_info")
      assert value == 1
      assert labels["backend"] == "cpu"
      assert labels["version"].startswith("0.")


def test_configurations_cannot_blow_up_the_series():
  with ServerProcess("--max_config_labels=4") as server:
    with server.channel() as channel:
      stub = rpc.AttentionServiceStub(channel)
      for dim in range(1, 31):
        stub.ComputeAttention(
            attention_requests.make(*attention_requests.random_tensors(dim=dim)),
            timeout=60)
    text = scrape(server)
    configs = set(re.findall(r'attention_requests_total{[^}]*config="([^"]*)"',
                             text))
    assert "other" in configs
    assert len(configs) <= 6


def test_promtool_finds_no_fault():
  if shutil.which("promtool") is None:
    pytest.skip("promtool is not installed")
  with ServerProcess() as server, server.channel() as channel:
    rpc.AttentionServiceStub(channel).ComputeAttention(
        attention_requests.small(), timeout=60)
    check = subprocess.run(["promtool", "check", "metrics"], input=scrape(server),
                           capture_output=True, text=True, timeout=60,
                           check=False)
  assert check.returncode == 0, check.stdout + check.stderr
