{% include "articles.js" %}
// The gold entities of the documents, as records of JSON lines, and the answers to the findings.
const tasks = JSON.parse(document.getElementById("tasks").textContent);
const given = new Map();
const answered = document.getElementById("answered");
let unsaved = false;

function answer(article, value) {
  if (given.get(article) === value) given.delete(article);
  else given.set(article, value);
  article.dataset.answer = given.get(article) ?? "";
  for (const button of article.querySelectorAll("button")) {
    button.setAttribute("aria-pressed", given.get(article) === button.value);
  }
  const accepted = [...given.values()].filter((each) => each === "accept").length;
  answered.textContent =
    `${given.size} of ${articles.length} answered: ${accepted} accepted, ` +
    `${given.size - accepted} rejected.`;
  unsaved = given.size > 0;
}

// Whether an entity equals, or overlaps, another one, which may be null.
const equal = (a, b) => b && a.start === b.start && a.end === b.end && a.label === b.label;
const overlap = (a, b) => b && a.start < b.end && b.start < a.end;

// The documents with an answer: gold, without the gold entity of each accepted finding, and with
// its prediction in place of what that overlaps.
// Offsets are those of Python, which JavaScript's are not: they are only compared.
function records() {
  const found = new Map();
  for (const article of articles.filter((each) => given.has(each))) {
    const { doc, gold, predicted } = JSON.parse(article.dataset.finding);
    const record = found.get(doc) ?? { ...tasks[doc], answer: "accept" };
    found.set(doc, record);
    if (given.get(article) === "accept") {
      const kept = record.spans.filter((span) => !equal(span, gold) && !overlap(span, predicted));
      if (predicted) kept.push(predicted);
      record.spans = kept.sort((a, b) => a.start - b.start);
    }
  }
  return [...found.values()];
}

function download() {
  const lines = records().map((record) => JSON.stringify(record) + "\n");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(lines, { type: "application/json" }));
  link.download = "answers.jsonl";
  link.click();
  unsaved = false;
}

function move(article, by) {
  const shown = articles.filter((each) => !each.hidden);
  const next = shown[article ? shown.indexOf(article) + by : 0];
  if (next) next.focus();
  else if (by > 0 && !more.hidden) showMore();
}

const steps = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 };
const values = { a: "accept", r: "reject" };

document.addEventListener("keydown", (event) => {
  const { key, target } = event;
  if (event.ctrlKey || event.altKey || event.metaKey || target.closest("input, select")) return;
  const article = target.closest("article");
  if (key in steps) move(article, steps[key]);
  else if (key in values && article) {
    answer(article, values[key]);
    move(article, 1);
  } else return;
  event.preventDefault();
});
for (const article of articles) {
  for (const button of article.querySelectorAll("button")) {
    button.addEventListener("click", () => answer(article, button.value));
  }
}
document.getElementById("download")?.addEventListener("click", download);
addEventListener("beforeunload", (event) => {
  if (unsaved) event.preventDefault();
});
articles[0]?.focus({ preventScroll: true });
