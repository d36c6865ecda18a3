"""Looks at a report as readers do: in headless Chromium, wide and narrow, light, dark and printed, by axe-core's rules.

    see_report.py REPORT.html FOLDER    pictures and a PDF go to FOLDER

Needs the Python packages playwright and axe-playwright-python, and Chromium (Debian: chromium)."""
import pathlib
import shutil
import sys

GRAVE = ("serious", "critical")


def look(page, folder):
    """A line for each way to look: "1280 light: nothing", or what is wrong: errors, requests, an overflow, axe's
    findings. LookupError: there is nothing to look with."""
    try:
        from axe_playwright_python.sync_playwright import Axe
        from playwright.sync_api import sync_playwright
    except ImportError as why:
        raise LookupError(f"no {why.name} for this Python") from None
    chromium = shutil.which("chromium")
    if chromium is None:
        raise LookupError("no chromium")
    lines = []
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for width in (1280, 390):
            for scheme in ("light", "dark"):
                lines.append(f"{width} {scheme}: {look_once(browser, Axe(), page, width, scheme, folder) or 'nothing'}")
        browser.close()
    return lines


def look_once(browser, axe, page, width, scheme, folder):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    tab, wrong = context.new_page(), []
    tab.on("console", lambda m: wrong.append(m.text))
    tab.on("pageerror", lambda e: wrong.append(str(e)))
    tab.on("request", lambda r: r.url.startswith(("file:", "data:")) or wrong.append(f"asks for {r.url}"))
    tab.goto(page.resolve().as_uri())
    tab.wait_for_selector("footer")
    tab.wait_for_timeout(200)  # ResizeObserver
    if folder:
        tab.screenshot(path=folder / f"{width}-{scheme}.png", full_page=True)
    if tab.evaluate("document.documentElement.scrollWidth") > width:
        wrong.append("wider than the window")
    walk(tab, wrong)
    for v in axe.run(tab).response["violations"]:
        if v["impact"] in GRAVE or folder:
            wrong.append(f"{v['id']} ({v['impact']}): {v['nodes'][0]['html'][:120]}")
    if folder and width == 1280 and scheme == "dark":
        tab.pdf(path=folder / "print.pdf", format="A4", print_background=True)
    context.close()
    return "; ".join(wrong)


def walk(tab, wrong):
    """By keyboard: the cursor of every curve moves and is read out, every table opens."""
    for select in tab.query_selector_all("select"):  # everything that can be chosen, and back to the first
        for k in [*range(1, len(select.query_selector_all("option"))), 0]:
            if select.is_visible():
                select.select_option(index=k)
    for chart in tab.query_selector_all(".chart"):
        chart.focus()
        tab.keyboard.press("Home")
        first = chart.get_attribute("aria-valuetext")
        tab.keyboard.press("ArrowRight")
        if chart.get_attribute("aria-valuetext") == first and chart.get_attribute("aria-valuemax") != "0":
            wrong.append(f"the cursor of {chart.get_attribute('aria-label')} stays where it is")
    for summary in tab.query_selector_all("summary"):
        summary.press("Enter")
        for _ in range(250):  # the event comes later
            if summary.evaluate("s => s.parentElement.querySelector('td') !== null"):
                break
            tab.wait_for_timeout(20)
        else:
            wrong.append(f"no rows below {summary.inner_text()}")


if __name__ == "__main__":
    out = pathlib.Path(sys.argv[2])
    out.mkdir(exist_ok=True)
    print("\n".join(look(pathlib.Path(sys.argv[1]), out)))
