// Builds the page: one HTML file that needs no network, src/tacit/cli/playground.html.
// It names the SHA-256 of its sources, so that a test without Node can tell whether it is in step with them.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join, relative } from "node:path";
import { build, transform } from "esbuild";

const here = import.meta.dirname;
const tacit = join(here, "..", "src", "tacit");
const out = join(tacit, "cli", "playground.html");
const shared = ["colours.css", "logo.svg"].map((name) => join(tacit, "report", "templates", name));
const MOST = 250_000; // bytes

function sources(folder) {
  return readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
    const path = join(folder, entry.name);
    return entry.isDirectory() ? sources(path) : [path];
  });
}

/** Of names and contents, in the order of names; tests/test_playground.py does the same. */
function digest() {
  const files = [...sources(join(here, "src")), join(here, "build.mjs"), join(here, "package-lock.json"), ...shared];
  const hash = createHash("sha256");
  for (const [name, path] of files.map((path) => [relative(here, path).replaceAll("\\", "/"), path]).sort()) {
    hash.update(`${name}\0`).update(readFileSync(path)).update("\0");
  }
  return hash.digest("hex");
}

async function bundled(entry, define = {}) {
  const made = await build({
    entryPoints: [join(here, "src", entry)],
    bundle: true,
    minify: true,
    format: "iife",
    target: "es2022",
    charset: "utf8",
    legalComments: "none",
    write: false,
    define,
  });
  return made.outputFiles[0].text.trim();
}

const worker = await bundled("worker.ts");
const script = await bundled("main.ts", { WORKER: JSON.stringify(worker) });
const [colours, logo] = shared.map((path) => readFileSync(path, "utf8").trim());
const css = await transform(colours + readFileSync(join(here, "src", "style.css"), "utf8"), {
  loader: "css", minify: true, charset: "utf8",
});
const parts = {
  digest: digest(),
  style: css.code.trim(),
  icon: encodeURIComponent(logo),
  logo,
  script: script.replaceAll("</script", "<\\/script"),
};
const html = readFileSync(join(here, "src", "index.html"), "utf8").replace(/\{\{(\w+)\}\}/g, (_, name) => parts[name]);
if (Buffer.byteLength(html) > MOST) throw new Error(`the page has ${Buffer.byteLength(html)} bytes, more than ${MOST}`);
writeFileSync(out, html);
console.log(`${relative(process.cwd(), out)}: ${Buffer.byteLength(html)} bytes`);
