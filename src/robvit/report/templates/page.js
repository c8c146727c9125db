// The page itself: light or dark, copying, sorting, printing.

const root = document.documentElement;

function remembered(value) {
  try {
    if (value) localStorage.setItem("robvit-theme", value);
    return localStorage.getItem("robvit-theme");
  } catch {
    return value ?? null; // a page from disk may have no storage
  }
}

function prepareTheme() {
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    remembered(root.dataset.theme);
  });
}

function prepareCopy(button) {
  button.addEventListener("click", async () => {
    const text = button.parentElement.querySelector("pre");
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(text);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

function prepareSorting(table) {
  const heads = [...table.querySelectorAll("th")], body = table.tBodies[0];
  const value = (row, column) => row.cells[column].textContent.trim();
  heads.forEach((head, column) => {
    if (head.classList.contains("wide")) return;
    const button = make("button", { type: "button" }, head.textContent);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending", numeric = head.classList.contains("n");
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const order = (a, b) => numeric
        ? (parseFloat(value(a, column)) || 0) - (parseFloat(value(b, column)) || 0)
        : value(a, column).localeCompare(value(b, column));
      body.append(...[...body.rows].sort((a, b) => (down ? -1 : 1) * order(a, b)));
    });
  });
}

const theme = remembered();
if (theme === "light" || theme === "dark") root.dataset.theme = theme;

addEventListener("DOMContentLoaded", () => {
  prepareTheme();
  prepareViewer();
  document.querySelectorAll(".copy").forEach(prepareCopy);
  document.querySelectorAll(".sortable").forEach(prepareSorting);
  document.querySelectorAll(".chart").forEach(chart);
  document.querySelectorAll(".figure").forEach(surfaces);
  document.querySelectorAll(".gallery").forEach(gallery);
});
addEventListener("beforeprint", () => {
  document.querySelectorAll("details:not(.values)").forEach((part) => { part.open = true; });
});
