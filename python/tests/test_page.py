"""The pages in a real browser: Chromium, where there is one."""

import contextlib
import json
import shutil
import subprocess
from dataclasses import dataclass

import pytest
from conftest import BIN, JOBS, PATIENCE_S, forked, job_environment, laggard, machine
from playwright.sync_api import Page, sync_playwright
from test_service import Collector

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 800}
LATE, RANKS, STEPS = 4711, 10_000, 200

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def new_page(browser):
    """A page that keeps what the browser complains of."""
    page = browser.new_page(viewport=DESKTOP)
    page.set_default_timeout(PATIENCE_S * 1000)
    page.complaints = []
    page.on("console", lambda said: page.complaints.append(said.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    return page


@pytest.fixture
def page(browser):
    page = new_page(browser)
    yield page
    assert page.complaints == []
    page.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The report of 10,000 ranks, one of which is late in the second half."""
    folder = tmp_path_factory.mktemp("report")
    recording, report = folder / "job.json", folder / "report.html"
    punctual = [0.002, 0.03]
    matrix = [[punctual] * RANKS for _ in range(STEPS)]
    for step in range(STEPS // 2, STEPS):
        matrix[step] = [*matrix[step]]
        matrix[step][LATE] = [0.122, 0.03]
    stages = ["data.next_wait", "model.backward_cpu_wall"]
    recording.write_text(
        json.dumps({"schema": "stage-matrix/1", "stages": stages, "unit": "s", "matrix": matrix})
    )
    outcome = laggard("analyze", "--report", report, recording)
    assert outcome.code == 0, outcome.stderr
    return report


def ramp(page):
    """Colours down the last column of the heat map, and its height."""
    return page.evaluate(
        """() => {
            const canvas = document.querySelector('#lag .plot canvas');
            const { width, height } = canvas;
            const column = canvas.getContext('2d').getImageData(width - 2, 0, 1, height).data;
            return Array.from({ length: height }, (_, y) => column.slice(4 * y, 4 * y + 3).join());
        }"""
    )


def test_ten_thousand_ranks_are_drawn_and_the_late_one_shows(page, report):
    page.goto(report.as_uri())
    assert "open" in page.locator("h1").inner_text()
    assert f"rank {LATE} is late" in page.locator("main").inner_text().lower()
    colours = ramp(page)
    dark = [y for y, colour in enumerate(colours) if colour != colours[0]]
    assert dark and all(abs(y / len(colours) - LATE / RANKS) < 0.02 for y in dark)
    page.select_option("[name=order]", "latest")
    assert page.locator("#lag .plot text.named").text_content() == f"rank {LATE}"
    colours = ramp(page)
    assert colours[0] != colours[-1], "the latest rank stands first"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_is_readable_on_a_phone_and_in_the_dark(page, report, scheme):
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size(PHONE)
    page.goto(report.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    brightness = page.evaluate(
        """() => {
            const sum = colour => colour.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0);
            const style = getComputedStyle(document.body);
            return [sum(style.backgroundColor), sum(style.color)];
        }"""
    )
    background, text = brightness
    assert abs(background - text) > 400, brightness
    assert (background > text) == (scheme == "light")


@dataclass
class Told:
    """A job with a slow rank that a collector is told of until the tests are over."""

    collector: Collector
    process: subprocess.Popen
    # The list of jobs, opened when there was none.
    page: Page


@pytest.fixture(scope="module")
def told(browser, tmp_path_factory):
    # Who wants the machine alone waits for the end of the job.
    with contextlib.ExitStack() as ends, machine():
        collector = Collector(tmp_path_factory.mktemp("told") / "data")
        ends.callback(collector.kill)
        page = new_page(browser)
        ends.callback(page.close)
        page.goto(collector.url)
        page.locator("h1", has_text="No job yet").wait_for()
        tell = ["run", "--collector", collector.url, "--job", "slow", "--"]
        command = [BIN / "laggard", *tell, *forked(JOBS / "ddp.py", ranks=2)]
        environment = job_environment(SLOW_RANK="1", STEPS="100000")
        process = subprocess.Popen(
            [str(part) for part in command], env=environment, stderr=subprocess.DEVNULL
        )
        ends.callback(process.wait)
        ends.callback(process.terminate)
        yield Told(collector, process, page)


def test_a_fault_appears_on_the_pages_while_the_job_runs(told):
    # Nobody reloads anything.
    page = told.page
    row = page.locator("#jobs a")
    row.get_by_text("rank 1 is late").wait_for()
    page.fill("#find", "another")
    assert row.count() == 0
    page.fill("#find", "SLOW")
    row.click()
    page.get_by_text("Rank 1 is late in data.next_wait").first.wait_for()
    page.locator("#lag canvas").first.wait_for()
    assert page.complaints == []


# Answers as ui.perfetto.dev does, and shows what it was given.
PERFETTO = """<script>
    addEventListener('message', ({ source, origin, data }) => {
        if (data === 'PING') { source.postMessage('PONG', origin); return; }
        const { buffer, title } = data.perfetto;
        document.title = title;
        document.body.textContent = new TextDecoder().decode(buffer);
    });
</script><body></body>"""


def test_the_steps_around_an_incident_are_shown_by_perfetto(page, told):
    told.collector.wait_for(lambda job: job["state"] == "slow", "slow")
    page.goto(f"{told.collector.url}/jobs/slow")
    page.get_by_text("incident i1").click()
    page.get_by_text("Rank 1 is late in data.next_wait").first.wait_for()
    page.context.route(
        "https://ui.perfetto.dev/**",
        lambda route: route.fulfill(content_type="text/html", body=PERFETTO),
    )
    with page.expect_popup() as popup:
        page.get_by_text("shown by ui.perfetto.dev").click()
    there = popup.value
    there.wait_for_function("document.body.textContent.includes('traceEvents')")
    assert there.title() == page.title()
    events = json.loads(there.locator("body").inner_text())["traceEvents"]
    names = {
        event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"
    }
    assert names[1].startswith("rank 1 on ") and names[1].endswith("(named)")
    waits = {rank: [] for rank in names}
    for event in events:
        if event["name"] == "data.next_wait":
            waits[event["pid"]].append(event["dur"])
    assert all(len(spans) > 5 for spans in waits.values())
    medians = {rank: sorted(spans)[len(spans) // 2] for rank, spans in waits.items()}
    assert max(medians, key=medians.get) == 1, medians


def only_unanswered(page):
    """Whether the browser had no more to say than that nobody answered; forgets what it said."""
    said = [*page.complaints]
    page.complaints.clear()
    return all(line.startswith("Failed to load resource") for line in said)


def test_an_open_page_says_that_its_server_is_away_and_goes_on_with_it(page, told):
    collector = told.collector
    before = collector.wait_for(lambda job: job["state"] == "slow", "slow")["steps"]
    page.goto(f"{collector.url}/jobs/slow")
    page.get_by_text("Rank 1 is late in data.next_wait").first.wait_for()
    collector.kill()
    page.get_by_text("the server does not answer").wait_for()
    collector.start()
    page.locator("#live", has_text="live").wait_for()
    # The job went on meanwhile, and tells of all of it.
    collector.wait_for(lambda job: job["steps"] > before, "slow")
    assert told.process.poll() is None
    assert only_unanswered(page)
