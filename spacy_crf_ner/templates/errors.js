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
