"""Looks at the site of the docs as readers do, without a server: in headless Chromium, wide and narrow, light and dark, by
axe-core's rules, and searches it.

    see_site.py SITE/html [FOLDER]    pictures go to FOLDER

Needs the Python packages playwright and axe-playwright-python, and Chromium (Debian: chromium)."""
import pathlib
import shutil
import sys

PAGES = ["index", "project", "config", "troubleshooting", "coming-from", "writing-plugins/README", "files/conf/photos.ini"]
SEARCHES = {"min_world": "config.html", "port is in use": "troubleshooting.html", "SyncBatchNorm": "coming-from.html"}


def look_once(browser, axe, site, width, scheme, folder):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    tab = context.new_page()
    tab.on("pageerror", lambda e: print(f"  {e}"))
    tab.on("requestfailed", lambda r: r.resource_type == "xhr" or print(f"  not there: {r.url}"))  # axe's own are refused for files
    tab.on("request", lambda r: r.url.startswith(("file:", "data:")) or print(f"  asks for {r.url}"))
    for name in PAGES:
        tab.goto((site / f"{name}.html").resolve().as_uri())
        tab.wait_for_timeout(100)
        if folder:
            tab.screenshot(path=folder / f"{width}-{scheme}-{name.replace('/', '-')}.png")
        if tab.evaluate("document.documentElement.scrollWidth") > width:
            print(f"  {width} {name}: wider than the window: {tab.evaluate('document.documentElement.scrollWidth')}")
        for v in axe.run(tab).response["violations"]:
            if v["impact"] in ("serious", "critical"):
                print(f"  {width} {scheme} {name}: {v['id']} ({v['impact']}) {len(v['nodes'])}: {v['nodes'][0]['html'][:160]} "
                      f"{v['nodes'][0].get('failureSummary', '')[:200]}")
    context.close()


def search(browser, site):
    tab = browser.new_page()
    for words, page in SEARCHES.items():
        tab.goto((site / "search.html").resolve().as_uri() + f"?q={words.replace(' ', '+')}")
        tab.wait_for_selector("#search-results li a")
        found = [a.get_attribute("href").split("?")[0].split("#")[0] for a in tab.query_selector_all("#search-results li a")]
        print(f"  search {words}: {len(found)} pages, {'found' if page in found else 'NOT FOUND'}: {found[:4]}")


def main():
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import sync_playwright
    site, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for width in (1280, 375):
            for scheme in ("light", "dark"):
                look_once(browser, Axe(), site, width, scheme, folder)
        search(browser, site)
        browser.close()


if __name__ == "__main__":
    main()
