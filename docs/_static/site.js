// A browser fetches no neighbours of a page on the disk: there the search shows titles without excerpts.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

// Every line of code is a block, so that what continues it can hang; a string over several lines stays as it is.
function hang(code) {
  const lines = code.innerHTML.trimEnd().split("\n");
  const closed = (line) => (line.match(/<span/g) || []).length === (line.match(/<\/span>/g) || []).length;
  if (lines.every(closed)) code.innerHTML = lines.map((line) => `<span class="line">${line}\n</span>`).join("");
}

// A browser breaks lines after hyphens: options such as --out and names such as robvit-mini are kept whole.
function keepWhole(code) {
  const walker = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
  const texts = [];
  while (walker.nextNode()) texts.push(walker.currentNode);
  for (const text of texts) {
    const parts = text.data.split(/(\S*-\S*)/);
    if (parts.length < 2) continue;
    text.replaceWith(...parts.map((part, place) => {
      if (place % 2 === 0 || part.length > 24) return part;
      return Object.assign(document.createElement("span"), { className: "whole", textContent: part });
    }));
  }
}

// A button that puts a block's text on the clipboard.
function offerCopy(block, code) {
  const button = Object.assign(document.createElement("button"), { type: "button", className: "copy" });
  const label = (text) => { button.textContent = text; };
  label("Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent.trimEnd() + "\n");
      label("Copied");
    } catch {
      getSelection().selectAllChildren(code);
      label("Selected");
    }
    setTimeout(() => label("Copy"), 1500);
  });
  block.append(button);
}

// A table too wide for a phone is shown there row by row: each cell learns the name of its column.
function stack(table) {
  const heads = [...table.querySelectorAll("thead th")].map((head) => head.textContent.trim());
  if (heads.length < 3) return;
  table.classList.add("stacked");
  for (const row of table.tBodies[0].rows) {
    [...row.cells].forEach((cell, place) => {
      if (heads[place] && cell.textContent.trim()) cell.dataset.head = heads[place];
    });
  }
}

document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("table.docutils")) stack(table);
  for (const code of document.querySelectorAll("code")) keepWhole(code);
  for (const block of document.querySelectorAll("div.highlight")) {
    if (block.closest(".highlight-text")) continue; // a drawing, nothing to run
    const code = block.querySelector("pre");
    hang(code);
    keepWhole(code);
    offerCopy(block, code);
  }
});
