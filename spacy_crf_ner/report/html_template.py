"""The sheet that a report is drawn on: its frame, its looks, and what its filters do."""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>{title}</h1>
{summary}
<nav aria-label="Sections">{contents}</nav>
</header>
<main>
{sections}
</main>
<script>{script}</script>
</body>
</html>
"""

STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1b1d21; --muted: #5f6570;
  --line: #d9dce1; --accent: #3451b2; --wrong: #b8342b; }
@media (prefers-color-scheme: dark) { :root { --ground: #16181d; --ink: #e6e8ec;
  --muted: #a0a7b3; --line: #363b45; --accent: #93abff; --wrong: #ff8a80; } }
@media print { :root { color-scheme: light; --ground: #fff; --ink: #111; --muted: #555;
  --line: #ccc; --accent: #3451b2; --wrong: #b8342b; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground);
  max-width: 80rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere;
  font-variant-numeric: tabular-nums; }
h1 { font-size: 1.5rem; margin: 1rem 0; }
h2 { font-size: 1.15rem; margin: 0 0 .75rem; }
section { margin: 3rem 0 0; padding: 1.5rem 0 0; border-top: 1px solid var(--line); }
p { max-width: 45rem; margin: .5rem 0; }
.muted, figcaption, small { color: var(--muted); }
a { color: var(--accent); }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; font-size: .9rem; margin-top: 1.25rem; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }

.headline { display: flex; flex-wrap: wrap; gap: 1rem 3rem; margin: 1.5rem 0; }
.headline > div { min-width: 7rem; }
.headline dt, .side { font-size: .8rem; font-weight: bold; color: var(--muted);
  text-transform: uppercase; }
.headline dd { margin: 0; font-size: 1.5rem; line-height: 1.3; }
.headline .first dd { font-size: 2.75rem; line-height: 1.1; color: var(--accent); }
.headline small { display: block; font-size: .85rem; }

.scroll { overflow: auto; max-width: 100%; margin: 1rem 0; }
.scroll.tall { max-height: 90vh; }
table { border-collapse: collapse; }
th, td { padding: .35rem .75rem; text-align: right; vertical-align: baseline;
  border-bottom: 1px solid var(--line); overflow-wrap: normal; }
thead th { font-size: .85rem; color: var(--muted); vertical-align: bottom; }
th:first-child { text-align: left; padding-left: 0; min-width: 6rem; max-width: 16rem;
  overflow-wrap: anywhere; }
tbody th, tfoot th { font-weight: normal; }
tfoot th { white-space: nowrap; }
.told :is(th, td):last-child { text-align: left; color: var(--muted);
  white-space: nowrap; }
td small { margin-left: .5em; font-size: .8rem; white-space: nowrap; }
tfoot tr:first-child > * { border-top: 2px solid var(--muted); }
.sure { font-weight: bold; }

.bar { width: 10rem; height: .8rem; vertical-align: middle; }
.bar line { stroke: var(--line); stroke-width: 1; }
.bar rect { fill: color-mix(in srgb, var(--accent) 45%, transparent); }
.bar circle { fill: var(--accent); }

.matrix td, .matrix thead th { text-align: center; min-width: 3rem; padding: .35rem; }
.matrix thead th:first-child { text-align: left; padding-left: 0; }
.matrix tbody th { padding-right: .75rem; border-bottom: 0; }
.matrix td { border: 1px solid var(--ground);
  background: color-mix(in srgb, var(--wrong) calc(var(--density) * .5), transparent); }
.matrix td.right {
  background: color-mix(in srgb, var(--accent) calc(var(--density) * .4), transparent); }
.matrix td.zero { color: var(--muted); }
.matrix.upright thead th + th { writing-mode: vertical-rl; rotate: 180deg; text-align: left;
  min-width: 0; max-height: 12rem; }
.matrix.upright td { min-width: 2.4rem; font-size: .85rem; }
.matrix tbody th { position: sticky; left: 0; background: var(--ground); }

.filters { display: flex; flex-wrap: wrap; gap: .5rem 1.5rem; align-items: center;
  margin: 1rem 0; }
.filters > * { max-width: 100%; }
select, button { font: inherit; color: inherit; background: var(--ground); max-width: 100%;
  border: 1px solid var(--muted); border-radius: .3em; padding: .25rem .5rem; }
button { padding: .4rem 1rem; margin: 1rem 0; cursor: pointer; }
article { display: grid; grid-template-columns: 1fr 1fr; gap: .25rem 2rem; padding: .75rem;
  border-top: 1px solid var(--line); border-left: .25rem solid var(--wrong); }
article > div { min-width: 0; }
article .about { grid-column: 1 / -1; font-size: .85rem; color: var(--muted); margin: 0;
  max-width: none; }
article .about b { color: var(--ink); }
article .side { margin: 0; }
article .text { margin: 0; white-space: pre-wrap; line-height: 1.7; }
[hidden] { display: none !important; }
mark { color: #111; padding: .15em .35em; border-radius: .3em;
  box-decoration-break: clone; -webkit-box-decoration-break: clone; }
.text mark span { font-size: .7em; font-weight: bold; margin-left: .5em; unicode-bidi: isolate; }

.plots { display: flex; flex-wrap: wrap; gap: 1.5rem 3rem; align-items: flex-start; }
figure { margin: 1rem 0; min-width: 0; max-width: 100%; }
figcaption { font-size: .9rem; margin-top: .5rem; max-width: 30rem; }
figure svg { max-width: 100%; height: auto; display: block; }
.scroll svg { max-width: none; }
details { margin: .75rem 0; }
summary { cursor: pointer; color: var(--accent); }

@media (max-width: 40rem) {
  section { margin-top: 2rem; }
  article { grid-template-columns: 1fr; }
  th, td { padding: .35rem .5rem; }
  td small { display: block; margin: 0; }
}
@media print {
  body { font-size: 10pt; max-width: none; padding: 0; }
  nav, .filters, button, details:not([open]) { display: none; }
  article, figure, table { break-inside: avoid; }
  th, td { padding: .2rem .5rem; }
  td small { display: block; margin: 0; }
  .bar { width: 6rem; }
  .plots { gap: 0 2rem; }
  .plots figure { max-width: 45%; }
  h2 { break-after: avoid; }
  .scroll, .scroll.tall { overflow: visible; max-height: none; }
  .scroll svg { max-width: 100%; }
  .matrix { font-size: 8pt; }
  mark, .matrix td, .bar * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""

SCRIPT = """
"use strict";
const errors = [...document.querySelectorAll("article")];
const kind = document.getElementById("kind");
const label = document.getElementById("label");
const more = document.getElementById("more");
const step = Number(more?.value);
let limit = step;

function draw() {
  let found = 0;
  for (const error of errors) {
    const fits =
      (!kind.selectedIndex || error.dataset.kind === kind.value) &&
      (!label.selectedIndex ||
        [error.dataset.gold, error.dataset.predicted].includes(label.value));
    if (fits) found += 1;
    error.hidden = !fits || found > limit;
  }
  more.hidden = found <= limit;
  document.getElementById("found").textContent =
    found > limit ? `The first ${limit} of ${found}.` : `${found} found.`;
}

function filter() {
  limit = step;
  draw();
}

function showMore() {
  const waiting = new Set(errors.filter((error) => error.hidden));
  limit += step;
  draw();
  errors.find((error) => waiting.has(error) && !error.hidden)?.focus();
}

if (more) {
  kind.addEventListener("change", filter);
  label.addEventListener("change", filter);
  more.addEventListener("click", showMore);
  draw();
}
"""
