// The gallery: filters, pages and an enlarged view. Images are unpacked chunk by chunk when they are needed.

const PER_PAGE = matchMedia("(max-width: 42rem)").matches ? 8 : 24;

function gallery(section) {
  const key = section.dataset.key, size = Number(section.dataset.chunk);
  const items = readJson(document.getElementById(`${key}-items`));
  const form = section.querySelector("form"), grid = section.querySelector(".grid");
  const columns = JSON.parse(section.dataset.columns), chunks = new Map();
  let found = items.map((_, index) => index), page = 0;

  /** The addresses of one item's images. */
  function images(index) {
    const chunk = Math.floor(index / size);
    if (!chunks.has(chunk)) chunks.set(chunk, readJson(document.getElementById(`${key}-chunk-${chunk}`)));
    return chunks.get(chunk)[index % size];
  }

  function fits(item, wanted) {
    return (!wanted.outcome || item.outcome === wanted.outcome)
      && (!wanted.success || item.successes.includes(wanted.success))
      && (!wanted.scenario || item.scenario === wanted.scenario)
      && (!wanted.label || item.label === wanted.label)
      && (!wanted.name || item.name.toLowerCase().includes(wanted.name.toLowerCase()));
  }

  function filter() {
    const wanted = Object.fromEntries(new FormData(form));
    found = items.flatMap((item, index) => (fits(item, wanted) ? [index] : []));
    turn(0);
  }

  function turn(to) {
    const last = Math.max(0, Math.ceil(found.length / PER_PAGE) - 1);
    page = Math.min(Math.max(to, 0), last);
    const part = found.slice(page * PER_PAGE, (page + 1) * PER_PAGE);
    grid.replaceChildren(...part.map((index, place) => card(index, page * PER_PAGE + place)));
    const first = page * PER_PAGE + 1;
    section.querySelector("output").textContent = found.length
      ? `${first}–${first + part.length - 1} of ${found.length}${found.length < items.length ? `, from ${items.length}` : ""}`
      : `0 of ${items.length}`;
    section.querySelector('[data-page="-1"]').disabled = page === 0;
    section.querySelector('[data-page="1"]').disabled = page === last;
    section.querySelector(".nothing").hidden = found.length > 0;
  }

  function card(index, place) {
    const item = items[index];
    const button = make("button", { type: "button", title: "Enlarge" }, ...images(index).slice(0, 3).map((address, i) => image(address, columns[i], item)));
    button.addEventListener("click", () => viewer(place));
    const under = [item.name, item.scenario, item.attack, item.factor ? `×${item.factor}` : ""].filter(Boolean).join(" · ");
    return make("div", { className: "item" }, button, prediction(item), make("p", { className: "dim", title: under }, under));
  }

  function viewer(place) {
    const index = found[place], item = items[index];
    enlarge({
      title: item.name,
      move: (step) => { if (found[place + step] !== undefined) viewer(place + step); },
      images: images(index).map((address, i) => make("figure", {}, image(address, columns[i], item),
        make("figcaption", {}, i === 2 && item.factor ? `difference ×${item.factor}` : columns[i]))),
      facts: [prediction(item),
        make("p", { className: "dim" }, `${item.attack}, ${item.threat}${item.scenario ? `, ${item.scenario}` : ""}; distance ${short(item.distance)}`), predictions(item)],
    });
  }

  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const button of section.querySelectorAll("[data-page]")) {
    button.addEventListener("click", () => turn(page + Number(button.dataset.page)));
  }
  filter();
}

function image(address, column, item) {
  const reason = item.attack === "not attacked" && column !== "clean" ? item.attack : `${column} not at hand`;
  if (!address) return make("span", { className: "missing" }, reason);
  const image = make("img", { alt: `${column}: ${item.name}`, title: column, decoding: "async", src: address });
  image.addEventListener("load", () => image.classList.toggle("pixels", image.naturalWidth < 100));
  return image;
}

/** A predicted class, marked as correct or wrong. */
function marked(tag, predicted, correct) {
  return make(tag, { className: correct ? "correct" : "wrong" }, `${correct ? "✓" : "✕"} ${predicted}`);
}

/** The label, and the model's prediction under the attack. */
function prediction(item) {
  const clean = item.outcome === "wrong" && item.clean_predicted ? [make("span", { className: "dim" }, ` (clean: ${item.clean_predicted})`)] : [];
  return make("p", {}, item.label ? `${item.label} → ` : "", marked("span", item.predicted, item.correct), ...clean);
}

/** A table of the model's predictions under every attack. */
function predictions(item) {
  const several = item.predictions.some(([scenario]) => scenario);
  const heads = [...(several ? ["model and attacker"] : []), "attack", "threat", "prediction"];
  const rows = item.predictions.map(([scenario, attack, threat, predicted, correct]) => make("tr", {},
    ...[...(several ? [scenario] : []), attack, threat].map((text) => make("td", {}, text)),
    marked("td", predicted, correct)));
  return make("div", { className: "table" }, make("table", {},
    make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", {}, head)))), make("tbody", {}, ...rows)));
}

let onMove = () => {};

function enlarge({ title, images, facts, move }) {
  const dialog = document.getElementById("viewer");
  onMove = move;
  dialog.querySelector("strong").textContent = title;
  dialog.querySelector(".viewer-images").replaceChildren(...images);
  dialog.querySelector(".viewer-facts").replaceChildren(...facts);
  if (!dialog.open) dialog.showModal();
}

function prepareViewer() {
  const dialog = document.getElementById("viewer");
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog || event.target.closest("[data-close]")) dialog.close();
    const button = event.target.closest("[data-move]");
    if (button) onMove(Number(button.dataset.move));
  });
  dialog.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) onMove(step);
  });
}
