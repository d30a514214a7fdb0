import { chromium } from "playwright-core";
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
const shot = async (name, opts, act, full=false) => {
  const page = await browser.newPage(opts); page.on("console", m => { if (m.type()==="error") console.log(name, m.text()); }); page.on("pageerror", e => console.log(name, "ERR", e.message));
  await page.goto("file:///tmp/wt/playground/src/tacit/cli/playground.html" + (opts.hash ?? "")); await act(page); await page.screenshot({ path: `/tmp/shots/${name}.png`, fullPage: full }); await page.close(); };
const which = process.argv.slice(2); const want = n => which.length===0 || which.includes(n);
const D = { viewport: { width: 1440, height: 960 } };
if (want("desk")) await shot("desk", D, async p => { await p.waitForTimeout(2500); await p.click("#play"); await p.waitForTimeout(6000); await p.click("#step-button"); await p.waitForTimeout(500); }, true);
if (want("dark")) await shot("dark", { ...D, colorScheme: "dark" }, async p => { await p.click("[data-preset=outlier]"); await p.waitForTimeout(7000); await p.click("#step-button"); await p.waitForTimeout(300); }, true);
if (want("phone")) await shot("phone", { viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, isMobile: true, hasTouch: true }, async p => { await p.click("#play"); await p.waitForTimeout(5000); await p.click("#step-button"); await p.waitForTimeout(500); }, true);
if (want("attack")) await shot("attack", D, async p => { await p.click("#tour-button"); for (let k=0;k<6;k++){ await p.click("#tour-next"); await p.waitForTimeout(300);} await p.waitForFunction(() => document.getElementById("verdict").textContent.length>5, null, {timeout:60000}); await p.evaluate(() => document.getElementById("tour-next").click()); await p.waitForTimeout(600); }, true);
await browser.close();
