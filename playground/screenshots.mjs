// Takes the pictures of docs/index.md and docs/explanation/playground.md from the built page: `make playground-pictures`.
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const here = import.meta.dirname;
const address = pathToFileURL(join(here, "..", "src", "tacit", "cli", "playground.html")).href;
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
const DESKTOP = { viewport: { width: 1360, height: 850 } };
const finished = (page) => page.waitForFunction(() => /Finished/.test(document.getElementById("step-count").textContent));
const drawn = (page) => page.waitForFunction(() => document.querySelectorAll("#epsilon-chart .line").length === 4);

async function picture(name, options, hash, act, part = null) {
  const page = await browser.newPage(options);
  await page.goto(address + hash);
  await page.selectOption("#speed", "fastest");
  await act(page);
  await page.waitForTimeout(500);
  const path = join(here, "..", "docs", "pictures", `playground-${name}.png`);
  await (part === null ? page.screenshot({ path }) : page.locator(part).screenshot({ path }));
  await page.close();
}

const play = async (page) => {
  await page.click("#play");
  await finished(page);
  await drawn(page);
};
const outliers = "#data=clusters&width=16&depth=2&T=500&spread=0.1&n=200&q=0.4&sigma=10&C=0.5";
const start = "#by=epsilon&sigma=2.29";
await picture("page", DESKTOP, start, play);
await picture("dark", { ...DESKTOP, colorScheme: "dark" }, start, play);
await picture("outliers", { ...DESKTOP, colorScheme: "dark" }, outliers, play, "#boards");
await picture("step", DESKTOP, "#step=10", (page) => page.click("#step-button"), "#mechanism");
await picture("attack", DESKTOP, "#n=200&width=16&depth=2&spread=0.1&sigma=2", async (page) => {
  await page.click("#canary");
  await page.click("#attack-button");
  await page.waitForFunction(() => document.getElementById("verdict").textContent !== "", null, { timeout: 120_000 });
}, "#attack");
await browser.close();
