"""Prometheus's configuration and rules, and Grafana's dashboard.

promtool checks the former and runs the rules over made-up series. That the
queries of both name metrics, labels and label values that exist is checked
against a scrape of the real server after real requests. Wants the programs'
paths in ATTENTION_SERVER and ATTENTION_LOAD.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy/prometheus"
RULES = sorted((PROMETHEUS / "rules").glob("*.yml"))
DASHBOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))

# Families that have no series, and so are not in a scrape, until something
# fails: looked up in the source that defines them.
ONLY_AFTER_FAILURES = {"attention_batch_failures_total"}

# What Prometheus adds to what it scrapes.
SCRAPE_METRICS = {"up"}
SCRAPE_LABELS = {"job", "instance"}

# Values of these depend on what happened; only the label's name is checked.
OPEN_LABELS = {"code"}


def promtool(*arguments):
    done = subprocess.run(["promtool", *map(str, arguments)],
                          capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def rule_queries():
    """(place, record name or None, query) of every rule."""
    queries = []
    for path in RULES:
        # promtool has checked the files; a YAML library is not needed to find
        # "- record:", "- alert:" and "expr:" with its block.
        name, record = None, None
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            if match := re.match(r"\s*- (record|alert): (\S+)$", line):
                name = match[2]
                record = name if match[1] == "record" else None
            elif match := re.match(r"(\s*)expr: (.*)$", line):
                query = match[2].strip('"')
                if query == "|":
                    block = []
                    for following in lines[number + 1:]:
                        if not following.startswith(match[1] + "  "):
                            break
                        block.append(following)
                    query = "\n".join(block)
                queries.append((f"{path.name}: {name}", record, query))
    return queries


def dashboard_panels():
    """(file name, panel) of every panel that shows something."""
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            if panel["type"] != "row":
                yield path.name, panel


def dashboard_queries():
    """(place, query) of every panel and variable, with variables filled in."""
    queries = []
    for file_name, panel in dashboard_panels():
        for target in panel["targets"]:
            queries.append((f"{file_name}: {panel['title']}", target["expr"]))
    for path in DASHBOARDS:
        for variable in json.loads(path.read_text())["templating"]["list"]:
            if variable["type"] == "query":
                match = re.fullmatch(r"label_values\((.*), (\w+)\)",
                                     variable["query"]["query"])
                queries.append((f"{path.name}: ${variable['name']}",
                                f"sum by ({match[2]}) ({match[1]})"))
    return [(place, fill_in(query)) for place, query in queries]


def fill_in(query):
    query = query.replace("$__rate_interval", "5m")
    query = re.sub(r"\$(instance|config)\b", ".*", query)
    assert "$" not in query, query
    return query


GROUPING = r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)"


def metric_names(query):
    """All metric names in a PromQL query."""
    query = re.sub(r'"[^"]*"', "", query)
    query = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\boffset\s+\w+", " ", query)
    query = re.sub(GROUPING, " ", query)
    names = re.findall(r"(?<![\w:])([a-zA-Z_:][\w:]*)(?![\w:]*\s*\()", query)
    return {n for n in names if n not in {"or", "and", "unless", "bool"}}


def selectors(query):
    """(metric, [(label, operator, value)]) of every selector with braces."""
    for metric, body in re.findall(r"([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}", query):
        yield metric, re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', body)


def grouping_labels(query):
    return {label.strip() for group in re.findall(GROUPING, query)
            for label in group.split(",") if label.strip()}


RULE_QUERIES = rule_queries()
RECORDS = {record for _, record, _ in RULE_QUERIES if record}
QUERIES = ([(place, query) for place, _, query in RULE_QUERIES]
           + dashboard_queries())


class Server:
    def __init__(self):
        self.process = subprocess.Popen(
            [os.environ["ATTENTION_SERVER"], "--listen=127.0.0.1:0",
             "--metrics_address=127.0.0.1:0", "--backend=cpu",
             "--log_format=json"],
            stderr=subprocess.PIPE, text=True)
        self.target, self.metrics = None, None
        while not (self.target and self.metrics):
            line = self.process.stderr.readline()
            assert line, "the server ended"
            entry = json.loads(line)
            if entry["message"] == "listening":
                self.target = entry["address"]
            elif "metrics" in entry["message"]:
                self.metrics = entry["address"]

    def load(self, *arguments):
        return subprocess.run(
            [os.environ["ATTENTION_LOAD"], f"--server={self.target}",
             "--warmup=0s", "--inputs=1", *arguments],
            capture_output=True, text=True, check=False).returncode

    def scrape(self):
        url = f"http://{self.metrics}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.read().decode()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


@pytest.fixture(scope="module")
def scrape():
    """The text of a scrape after an answered request."""
    server = Server()
    try:
        assert server.load("--requests=1", "--query_length=4", "--heads=1") == 0
        yield server.scrape()
    finally:
        assert server.stop() == 0


@pytest.fixture(scope="module")
def samples(scrape):
    """{metric name: [labels of each series]}"""
    found = {}
    for line in scrape.splitlines():
        if match := re.match(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? \S+$", line):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
            found.setdefault(match[1], []).append(labels)
    assert len(found) > 20
    return found


def test_configuration():
    code, output = promtool("check", "config", PROMETHEUS / "prometheus.yml")
    assert code == 0, output
    assert f"{len(RULES)} rule files found" in output


def test_rules_are_valid():
    code, output = promtool("check", "rules", *RULES)
    assert code == 0, output


def test_rules_do_what_they_say():
    code, output = promtool("test", "rules",
                            ROOT / "tests/deploy/alerts_test.yml")
    assert code == 0, output


def test_every_alert_has_a_severity_a_runbook_and_a_test():
    text = (PROMETHEUS / "rules/alerts.yml").read_text()
    tested = (ROOT / "tests/deploy/alerts_test.yml").read_text()
    alerts = re.split(r"\n\s*- alert: ", text)[1:]
    assert len(alerts) >= 7
    for alert in alerts:
        name = alert.split("\n")[0]
        assert re.search(r"severity: (page|ticket)\b", alert), name
        for annotation in ("summary:", "description:", "runbook: |"):
            assert annotation in alert, (name, annotation)
        assert f'alertname="{name}", alertstate="firing"' in tested, name
        assert f"alertname: {name}}}" in tested, name  # and does not always fire


def test_dashboard_queries_are_promql(tmp_path):
    rules = {"groups": [{"name": "dashboard", "rules": [
        {"record": f"query:{i}", "expr": query}
        for i, (_, query) in enumerate(dashboard_queries())]}]}
    path = tmp_path / "queries.yml"
    path.write_text(json.dumps(rules))  # JSON is YAML
    code, output = promtool("check", "rules", path)
    assert code == 0, output


def test_dashboard_shows_every_subject():
    queries = " ".join(query for _, query in dashboard_queries())
    for metric in (
            "attention_requests_total", "attention_phase_duration_seconds_bucket",
            "attention_batch_requests_bucket", "attention_queue_requests",
            "attention_queue_bytes", "attention_bytes_total",
            "attention_copied_bytes_total", "attention_flops_total",
            "attention_achieved_flops_per_second", "attention_memory_bytes",
            "attention_refused_total", "attention_dropped_total",
            "attention_batch_failures_total", "attention_sessions",
            "attention_session_page_bytes", "attention_session_refusals_total",
            "attention_session_moved_bytes_total", "attention_uploads"):
        assert metric in queries


def test_readme_names_every_metric():
    """Those of the table, and those that the server's sources define."""
    text = (ROOT / "README.md").read_text()
    table = text[text.index("**Metrics**"):]
    table = table[:table.index("\n\n", table.index("| metric |"))]
    documented = {f"attention_{name}"
                  for row in table.splitlines() if row.startswith("|")
                  for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    defined = {name for path in (ROOT / "server/metrics").glob("*.cc")
               for name in re.findall(r'"(attention_\w+)"', path.read_text())}
    assert len(defined) > 30
    assert documented == defined


def test_dashboard_panels_are_well_formed():
    ids, places = set(), set()
    for file_name, panel in dashboard_panels():
        title = panel["title"]
        assert panel["id"] not in ids, title
        ids.add(panel["id"])
        assert panel["description"], title
        assert panel["fieldConfig"]["defaults"]["unit"], title
        for part in [panel, *panel["targets"]]:
            assert part["datasource"]["uid"] == "${datasource}", title
        grid = panel["gridPos"]
        cells = {(file_name, x, y)
                 for x in range(grid["x"], grid["x"] + grid["w"])
                 for y in range(grid["y"], grid["y"] + grid["h"])}
        assert not cells & places and grid["x"] + grid["w"] <= 24, title
        places |= cells


def test_every_query_names_metrics_that_exist(samples):
    source = (ROOT / "server/metrics/metrics.cc").read_text()
    for name in ONLY_AFTER_FAILURES:
        assert f'"{name}"' in source
    known = SCRAPE_METRICS | RECORDS | ONLY_AFTER_FAILURES | set(samples)
    for place, query in QUERIES:
        names = metric_names(query)
        assert names, place
        assert names <= known, (place, names - known)


def test_every_query_names_labels_that_exist(samples):
    failure_labels = {"device", "code"}

    def labels_of(metric):
        if metric in ONLY_AFTER_FAILURES:
            return failure_labels | SCRAPE_LABELS
        return set().union(*samples.get(metric, [])) | SCRAPE_LABELS

    for place, query in QUERIES:
        names = metric_names(query)
        if not names & RECORDS:  # records have the labels of their own query
            allowed = set().union(*map(labels_of, names))
            assert grouping_labels(query) <= allowed, place
        for metric, matchers in selectors(query):
            if metric in SCRAPE_METRICS | RECORDS:
                continue
            labels = {label for label, _, _ in matchers}
            assert labels <= labels_of(metric), (place, metric)


def test_every_query_selects_label_values_that_exist(samples):
    for place, query in QUERIES:
        for metric, matchers in selectors(query):
            wanted = [(label, re.compile(value if operator == "=~"
                                         else re.escape(value)))
                      for label, operator, value in matchers
                      if operator in ("=", "=~")
                      and label not in OPEN_LABELS | SCRAPE_LABELS]
            if metric in samples and wanted:
                assert any(
                    all(pattern.fullmatch(series.get(label, ""))
                        for label, pattern in wanted)
                    for series in samples[metric]), (place, metric, matchers)


def test_scrape_is_valid(scrape):
    done = subprocess.run(["promtool", "check", "metrics"], input=scrape,
                          capture_output=True, text=True, check=False)
    # 3: valid, with remarks on style, which the exposer's own metrics draw.
    assert done.returncode in (0, 3), done.stdout + done.stderr
    remarks = [line for line in (done.stdout + done.stderr).splitlines()
               if line.startswith("attention_")]
    assert not remarks, remarks
