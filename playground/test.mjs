// Runs the tests: each file is bundled by esbuild and given to Node's runner.  `node test.mjs browser` runs those
// that
// need the built page and Chromium (CHROMIUM=/path, by default /usr/bin/chromium).
import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { build } from "esbuild";

const here = import.meta.dirname;
const words = process.argv.slice(2);
const folder = join(here, "tests", words[0] === "browser" ? words.shift() : "");
const wanted = words[0] ?? "";
const files = readdirSync(folder).filter((name) => name.endsWith(".test.ts") && name.includes(wanted));
const out = mkdtempSync(join(here, ".tests-")); // inside, so that packages are found
try {
  await build({
    entryPoints: files.map((name) => join(folder, name)),
    outdir: out,
    outExtension: { ".js": ".mjs" },
    bundle: true,
    packages: "external",
    platform: "node",
    format: "esm",
    sourcemap: "inline",
    logLevel: "error",
    define: { PLAYGROUND: JSON.stringify(here) },
  });
  const tests = files.map((name) => join(out, name.replace(".ts", ".mjs")));
  const run = spawnSync(process.execPath, ["--enable-source-maps", "--test", "--test-concurrency=1", ...tests], {
    stdio: "inherit",
  });
  process.exitCode = run.status ?? 1;
} finally {
  rmSync(out, { recursive: true, force: true });
}
