"use strict";
// Charts: drawn as SVG at the width they have, with a cross-hair that reads the values.

const PALETTE = 6;
const MARGIN = { top: 12, right: 14, bottom: 44, left: 52 };

/** An element with properties and children; text becomes text nodes, never markup. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element && name !== "style") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function shape(tag, attributes = {}, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
}

const readJson = (element) => JSON.parse(element.textContent);
const colour = (index) => `var(--c${index % PALETTE})`;

/** A number in as few digits as tell it apart. */
function short(value) {
  if (value === null) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(1);
  return String(Number(value.toPrecision(3)));
}

/** Round numbers that cover [low, high] in about `want` steps. */
function roundTicks(low, high, want) {
  const rough = (high - low) / want || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step);
  return ticks;
}

/** Maps values to pixels; spreads logarithmically what spans several magnitudes. */
function axis(values, from, to, { log = false, zero = false } = {}) {
  let low = Math.min(...values), high = Math.max(...values);
  if (zero) { low = Math.min(low, 0); }
  if (low === high) { const room = Math.abs(low) || 1; low -= room / 2; high += room / 2; }
  const bend = log ? Math.log : (v) => v;
  const place = (v) => from + ((bend(v) - bend(low)) / (bend(high) - bend(low))) * (to - from);
  return { low, high, place };
}

/** The values themselves as ticks where they are few, otherwise round numbers. */
function acrossTicks(values, scale, log, width) {
  const distinct = [...new Set(values)].sort((a, b) => a - b);
  let ticks = distinct;
  if (distinct.length > 9 && !log) ticks = roundTicks(scale.low, scale.high, Math.max(3, width / 90));
  if (distinct.length > 9 && log) {
    ticks = [];
    for (let p = Math.floor(Math.log10(scale.low)); 10 ** p <= scale.high; p++) if (10 ** p >= scale.low) ticks.push(10 ** p);
  }
  let last = -Infinity;
  return ticks.filter((t) => scale.place(t) - last > 34 && ((last = scale.place(t)), true));
}

function chart(figure) {
  const plot = figure.querySelector(".plot");
  const data = readJson(figure.querySelector("script"));
  const lines = Object.entries(data.lines).map(([name, points], index) => ({
    name, index, shown: true, points: points.filter((p) => p[0] !== null && p[1] !== null),
  }));
  const say = (v) => (data.percent && v !== null ? `${(100 * v).toFixed(1)} %` : short(v));
  const tip = make("div", { className: "tip", hidden: true });
  let view = null;

  function draw() {
    const visible = lines.filter((l) => l.shown && l.points.length);
    const width = Math.max(260, plot.clientWidth || 640), height = Math.round(Math.min(340, Math.max(240, width * 0.5)));
    const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    plot.replaceChildren(svg, tip);
    tip.hidden = true;
    view = null;
    if (!visible.length) return;
    const all = visible.flatMap((l) => l.points), across = all.map((p) => p[0]);
    const log = Math.min(...across) > 0 && Math.max(...across) / Math.min(...across) >= 16 && new Set(across).size <= 8;
    const x = axis(across, MARGIN.left, width - MARGIN.right, { log });
    const heights = data.percent ? [0, 1] : all.flatMap((p) => p.slice(1).filter((v) => v !== null));
    const y = axis(heights, height - MARGIN.bottom, MARGIN.top, { zero: Math.min(...heights) >= 0 });
    for (const t of roundTicks(y.low, y.high, 5)) {
      svg.append(shape("line", { class: "grid-line", x1: MARGIN.left, x2: width - MARGIN.right, y1: y.place(t), y2: y.place(t) }));
      svg.append(shape("text", { x: MARGIN.left - 8, y: y.place(t) + 4, "text-anchor": "end" }, data.percent ? `${Math.round(100 * t)} %` : short(t)));
    }
    for (const t of acrossTicks(across, x, log, width)) {
      svg.append(shape("line", { class: "axis", x1: x.place(t), x2: x.place(t), y1: height - MARGIN.bottom, y2: height - MARGIN.bottom + 5 }));
      svg.append(shape("text", { x: x.place(t), y: height - MARGIN.bottom + 19, "text-anchor": "middle" }, short(t)));
    }
    svg.append(shape("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: height - MARGIN.bottom, y2: height - MARGIN.bottom }));
    svg.append(shape("text", { x: (MARGIN.left + width - MARGIN.right) / 2, y: height - 6, "text-anchor": "middle" }, data.x));
    for (const line of visible) trace(svg, line, x, y);
    const cross = shape("line", { class: "cross", y1: MARGIN.top, y2: height - MARGIN.bottom, visibility: "hidden" });
    svg.append(cross);
    view = { x, y, cross, svg, width, visible, stops: [...new Set(visible.flatMap((l) => l.points.map((p) => p[0])))].sort((a, b) => a - b), at: -1 };
  }

  function trace(svg, line, x, y) {
    const paint = `color:${colour(line.index)}`, points = line.points;
    const ranged = points.filter((p) => p.length > 3 && p[2] !== null && p[3] !== null);
    const path = (list) => list.map(([a, b], i) => `${i ? "L" : "M"}${x.place(a).toFixed(1)} ${y.place(b).toFixed(1)}`).join("");
    if (ranged.length > 40) {
      const outline = [...ranged.map((p) => [p[0], p[3]]), ...ranged.map((p) => [p[0], p[2]]).reverse()];
      svg.append(shape("path", { class: "band", style: paint, fill: "currentColor", d: path(outline) + "Z" }));
    } else {
      for (const p of ranged) svg.append(shape("line", { class: "whisker", style: paint, stroke: "currentColor", x1: x.place(p[0]), x2: x.place(p[0]), y1: y.place(p[2]), y2: y.place(p[3]) }));
    }
    svg.append(shape("path", { class: `line line-${line.index}`, style: paint, stroke: "currentColor", d: path(points) }));
    if (points.length <= 24) for (const p of points) svg.append(shape("circle", { style: paint, fill: "currentColor", cx: x.place(p[0]), cy: y.place(p[1]), r: 3 }));
  }

  /** Show the values at one stop of the x axis. */
  function read(stop) {
    if (!view) return;
    view.at = Math.max(0, Math.min(view.stops.length - 1, stop));
    const at = view.stops[view.at], left = view.x.place(at);
    view.cross.setAttribute("x1", left);
    view.cross.setAttribute("x2", left);
    view.cross.setAttribute("visibility", "visible");
    const rows = view.visible.flatMap((line) => {
      const point = line.points.find((p) => p[0] === at);
      if (!point) return [];
      const range = point.length > 3 ? ` (${say(point[2])} to ${say(point[3])})` : "";
      return [make("div", { style: `--colour:${colour(line.index)}` }, make("span", {}, line.name), make("span", {}, say(point[1]) + range))];
    });
    tip.replaceChildren(make("div", {}, make("span", {}, `${data.x || "x"} ${short(at)}`)), ...rows);
    tip.hidden = false;
    const zoom = plot.clientWidth / view.width, place = left * zoom;
    const beside = place + 12 + tip.offsetWidth <= plot.clientWidth ? place + 12 : place - 12 - tip.offsetWidth;
    tip.style.left = `${Math.max(0, beside)}px`;
    tip.style.top = "8px";
  }

  function leave() {
    tip.hidden = true;
    if (view) view.cross.setAttribute("visibility", "hidden");
  }

  plot.addEventListener("pointermove", (event) => {
    if (!view) return;
    const box = view.svg.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * view.width;
    const distances = view.stops.map((s) => Math.abs(view.x.place(s) - at));
    read(distances.indexOf(Math.min(...distances)));
  });
  plot.addEventListener("pointerleave", leave);
  plot.addEventListener("blur", leave);
  plot.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move || !view) return;
    event.preventDefault();
    read(view.at + move);
  });
  if (lines.length > 1) plot.before(legend(lines, draw));
  new ResizeObserver(() => { if (Math.abs((view?.width ?? 0) - plot.clientWidth) > 1) draw(); }).observe(plot);
  draw();
}

function legend(lines, redraw) {
  const buttons = lines.map((line) => {
    const button = make("button", { type: "button", style: `--colour:${colour(line.index)}`, "aria-pressed": "true" }, line.name);
    button.addEventListener("click", () => {
      line.shown = !line.shown;
      button.setAttribute("aria-pressed", String(line.shown));
      redraw();
    });
    return button;
  });
  return make("div", { className: "legend" }, ...buttons);
}
