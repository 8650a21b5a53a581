"use strict";
const articles = [...document.querySelectorAll("article")];
const kind = document.getElementById("kind");
const label = document.getElementById("label");
const search = document.getElementById("search");
const more = document.getElementById("more");
const step = Number(more?.value);
let limit = step;

function fits(article) {
  const { kind: own, labels, text } = article.dataset;
  return (
    (!kind.selectedIndex || own === kind.value) &&
    (!label.selectedIndex || JSON.parse(labels).includes(label.value)) &&
    text.toLowerCase().includes(search.value.toLowerCase())
  );
}

function draw() {
  let found = 0;
  for (const article of articles) {
    const isFound = fits(article);
    if (isFound) found += 1;
    article.hidden = !isFound || found > limit;
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
  const waiting = new Set(articles.filter((article) => article.hidden));
  limit += step;
  draw();
  articles.find((article) => waiting.has(article) && !article.hidden)?.focus();
}

if (more) {
  kind.addEventListener("change", filter);
  label.addEventListener("change", filter);
  search.addEventListener("input", filter);
  more.addEventListener("click", showMore);
  draw();
}
