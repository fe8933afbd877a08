// Chromium by Playwright for tests in Python: each line of standard input is {"js", "given"}, a piece of JavaScript with
// `page`, `fresh()` (a tab that knows nothing, from then on `page`), `axe` (the source of axe-core), `problems` (errors of
// scripts and what a content policy forbade) and `given`; each line of output is {"answer"} or {"error"}. The
// end of the input is the end of the browser. NODE_PATH says where the packages are.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";

const require = createRequire(join(process.env.NODE_PATH, "here.js"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const [, , executablePath, withoutSandbox] = process.argv;
const browser = await chromium.launch({ executablePath, chromiumSandbox: withoutSandbox !== "yes" });
const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, reducedMotion: "reduce" });
const problems = [];
let page = null;
const fresh = async () => {
  await page?.close();
  page = await context.newPage();
  page.setDefaultTimeout(60_000);
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("console", (told) => /Content.Security.Policy|Trusted/i.test(told.text()) && problems.push(told.text()));
  return page;
};
await fresh();

const Piece = Object.getPrototypeOf(async () => {}).constructor;
for await (const line of createInterface({ input: process.stdin })) {
  const { js, given } = JSON.parse(line);
  let told;
  try {
    const answer = await new Piece("page", "fresh", "axe", "problems", "given", js)(page, fresh, axe, problems, given);
    told = { answer: answer ?? null };
  } catch (error) {
    told = { error: String(error.stack ?? error) };
  }
  process.stdout.write(`${JSON.stringify(told)}\n`);
}
await browser.close();
