// A page in Chromium, opened from disk, and what axe says of it.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { type Browser, type BrowserContextOptions, chromium, type Page } from "playwright-core";

declare const PLAYGROUND: string;

const AXE = readFileSync(createRequire(`${PLAYGROUND}/package.json`).resolve("axe-core/axe.min.js"), "utf8");
export const DESKTOP: BrowserContextOptions = { viewport: { width: 1440, height: 960 }, permissions: ["clipboard-read", "clipboard-write"] };
export const PHONE: BrowserContextOptions = { viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true };

export const launched = (): Promise<Browser> =>
  chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });

/** Open the page, do something, and see that it asked for no address and threw nothing. */
export async function opened(
  browser: Browser, file: string, options: BrowserContextOptions, act: (page: Page) => Promise<void>, hash = "",
): Promise<void> {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  const problems: string[] = [];
  page.on("pageerror", (error) => problems.push(error.message));
  page.on("console", (line) => line.type() === "error" && problems.push(line.text()));
  page.on("request", (request) => /^https?:/.test(request.url()) && problems.push(request.url()));
  await page.goto(`${pathToFileURL(file).href}${hash}`);
  await act(page);
  assert.deepEqual(problems, []);
  await context.close();
}

export async function axe(page: Page, what: string): Promise<void> {
  await page.evaluate(AXE);
  const found = await page.evaluate("axe.run(document, { resultTypes: ['violations'], preload: false })") as
    { violations: { id: string; nodes: { html: string; failureSummary: string }[] }[] };
  const said = found.violations.map((v) => `${v.id}: ${v.nodes.map((n) => `${n.html.slice(0, 120)} ${n.failureSummary}`).join("\n  ")}`);
  assert.deepEqual(said, [], what);
}
