// Builds the page that the broker serves: node build.mjs FOLDER. Packages are found by NODE_PATH (scripts/dashboard).
import { cp, mkdir, readFile, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";

const require = createRequire(join(process.env.NODE_PATH, "here.js"));
const esbuild = require("esbuild");
const [, , target] = process.argv;
const sources = join(import.meta.dirname, "src");

await mkdir(target, { recursive: true });
await esbuild.build({
  entryPoints: { app: join(sources, "main.jsx"), style: join(sources, "style.css") },
  outdir: target,
  nodePaths: [process.env.NODE_PATH],
  bundle: true,
  minify: true,
  format: "esm",
  target: ["es2022"],
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  logLevel: "warning",
});
for (const name of ["index.html", "icon.svg"]) {
  await cp(join(sources, name), join(target, name));
}
// What is in app.js that others wrote, by the terms of its licence.
const licence = await readFile(join(dirname(require.resolve("preact/package.json")), "LICENSE"), "utf8");
await writeFile(join(target, "licences.txt"), `Preact\n\n${licence}`);
