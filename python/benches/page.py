"""How long the page of a large job takes to appear, and its heat map to be drawn.

    python page.py [--ranks N] [--steps N] [--draws N]

In Chromium, at twice the pixels of a common desktop screen. A drawing is timed from the choice of
another order of ranks to the next frame that the browser is ready to show.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

BIN = Path(sys.executable).parent
DRAW = """async order => {
    const select = document.querySelector('#lag [name=order]');
    const begun = performance.now();
    select.value = order;
    select.dispatchEvent(new Event('change'));
    await new Promise(requestAnimationFrame);
    return performance.now() - begun;
}"""


def write_report(folder, ranks, steps):
    """The report of a job one of whose ranks is late in the second half."""
    punctual, late = [0.002, 0.03], [0.122, 0.03]
    matrix = [[punctual] * ranks for _ in range(steps)]
    for step in range(steps // 2, steps):
        matrix[step][ranks // 2] = late
    stages = ["data.next_wait", "model.backward_cpu_wall"]
    document = {"schema": "stage-matrix/1", "stages": stages, "unit": "s", "matrix": matrix}
    recording, report = folder / "job.json", folder / "report.html"
    recording.write_text(json.dumps(document))
    analyze = [BIN / "laggard", "analyze", "--report", report, recording]
    subprocess.run(analyze, check=True, capture_output=True)
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--draws", type=int, default=40)
    wanted = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        report = write_report(Path(folder), wanted.ranks, wanted.steps)
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900}, device_scale_factor=2)
        page.goto(report.as_uri())
        timing = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
        draws = [page.evaluate(DRAW, ["latest", "all"][nth % 2]) for nth in range(wanted.draws)]
        browser.close()
    print(f"{wanted.ranks} ranks, {wanted.steps} steps: there after {timing:.0f} ms")
    median, most = statistics.median(draws), max(draws)
    print(f"heat map drawn {wanted.draws} times: median {median:.0f} ms, at most {most:.0f} ms")


if __name__ == "__main__":
    main()
