// The pages that Tacit's Python writes, and pages of its documentation, opened from disk: they ask for no address,
// throw nothing, fit a phone, and axe finds no violation, light and dark. `make pages-test` writes the pages first.
import assert from "node:assert/strict";
import { existsSync, readdirSync } from "node:fs";
import { after, before, test } from "node:test";
import { type Browser } from "playwright-core";
import { axe, launched, opened, PHONE } from "./opened.ts";

declare const PLAYGROUND: string;

const PAGES = process.env.TACIT_PAGES ?? `${PLAYGROUND}/../build/pages`; // of write_pages.py
const SITE = process.env.TACIT_SITE ?? `${PLAYGROUND}/../build/site`; // of make docs
const OF_SITE = ["index", "tutorials/first-private-model", "results", "reference/generated/tacit.plan"];

const DESKTOP = { viewport: { width: 1280, height: 900 } };

let browser: Browser;
before(async () => {
  browser = await launched();
});
after(() => browser.close());

/** Light and dark, wide and narrow; all that is folded is open. */
async function everyLook(file: string): Promise<void> {
  for (const colorScheme of ["light", "dark"] as const) {
    for (const [width, options] of [["desktop", DESKTOP], ["phone", PHONE]] as const) {
      await opened(browser, file, { ...options, colorScheme }, async (page) => {
        await page.evaluate(() => document.querySelectorAll("details").forEach((each) => (each.open = true)));
        const [wide, window] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
        assert.ok(wide! <= window!, `${width}: it is ${wide} wide in a window of ${window}`);
        await axe(page, `${colorScheme}, ${width}`);
      });
    }
  }
}

const written = existsSync(PAGES) ? readdirSync(PAGES).filter((name) => name.endsWith(".html")) : [];
test("there are pages to look at", { skip: written.length ? false : `no pages in ${PAGES}: make pages-test writes them` }, () => {
  for (const kind of ["evaluation", "audit", "attack", "ledger", "certificate"])
    assert.ok(written.some((name) => name.startsWith(kind)), `${kind} is missing of ${written}`);
});
for (const name of written) test(`axe finds nothing on ${name}`, () => everyLook(`${PAGES}/${name}`));

for (const name of written.filter((each) => each.startsWith("certificate")))
  test(`${name} is one printed page`, () =>
    opened(browser, `${PAGES}/${name}`, DESKTOP, async (page) => {
      const pages = (await page.pdf({ format: "A4", margin: { top: "1cm", bottom: "1cm" } })).toString("latin1").match(/\/Type\s*\/Page\b/g);
      assert.equal(pages?.length, 1);
    }));

for (const name of OF_SITE) {
  const file = `${SITE}/${name}.html`;
  const skip = existsSync(`${SITE}/index.html`) ? false : `no site in ${SITE}: make docs builds it`;
  test(`axe finds nothing on the site's ${name}`, { skip }, () => everyLook(file));
  test(`no code of the site's ${name} is cut off`, { skip }, () =>
    opened(browser, file, DESKTOP, async (page) => {
      const cut = await page.evaluate(() =>
        [...document.querySelectorAll("article pre")]
          .filter((each) => each.closest(".cell_output") === null && each.scrollWidth > each.clientWidth)
          .map((each) => each.textContent));
      assert.deepEqual(cut, []);
    }));
}
