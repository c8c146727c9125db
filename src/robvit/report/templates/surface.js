// Surfaces: heights over a floor on a canvas, turned by dragging or by the arrow keys; those of a figure turn together.
// Their data, with `look` for the first view and the colours, are those of robvit/drawing/surfaces.py.

function surfaces(section) {
  const view = {};
  const drawn = [...section.querySelectorAll(".surface")].map((figure) => surface(figure, view, () => drawn.forEach((draw) => draw())));
  document.getElementById("theme").addEventListener("click", () => drawn.forEach((draw) => draw()));
}

function surface(figure, view, redrawAll) {
  const canvas = figure.querySelector("canvas"), data = readJson(figure.querySelector("script"));
  const { turn: firstTurn, tilt: firstTilt, rise, low: lowest, high: highest } = data.look;
  Object.assign(view, { turn: firstTurn, tilt: firstTilt });
  const tip = make("div", { className: "tip", hidden: true });
  canvas.after(tip);
  let tips = [];

  /** From blue to orange as heights rise. */
  function shade(height) {
    const share = Math.min(1, Math.max(0, height));
    return `rgb(${lowest.map((low, i) => Math.round(low + (highest[i] - low) * share)).join(" ")})`;
  }

  const spot = (column, row) => [2 * column / Math.max(data.columns - 1, 1) - 1, 2 * row / Math.max(data.rows - 1, 1) - 1];
  const depth = (x, y) => x * Math.sin(view.turn) + y * Math.cos(view.turn);

  /** Maps places of a box of width and depth 2 and height 1 to the canvas. */
  function projection(width, height) {
    const cos = Math.cos(view.turn), sin = Math.sin(view.turn), flat = Math.sin(view.tilt), up = Math.cos(view.tilt);
    const room = 2.84 * flat + rise * up + 0.12; // of floor, heights and names, in units of scale
    const scale = Math.min(width / 3.3, (height - 30) / room), middle = height - (1.42 * flat + 0.2) * scale;
    return (x, y, z) => [width / 2 + scale * (x * cos - y * sin), middle - scale * (rise * z * up - (x * sin + y * cos) * flat)];
  }

  function draw() {
    const width = canvas.clientWidth || 480, height = Math.round(width * 0.72), sharp = window.devicePixelRatio || 1;
    canvas.width = width * sharp;
    canvas.height = height * sharp;
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d"), at = projection(width, height), style = getComputedStyle(figure);
    pen.scale(sharp, sharp);
    pen.font = `12px ${style.fontFamily}`;
    const probe = make("i", { style: "color:var(--dim);background:var(--track);border-color:var(--line);outline-color:var(--page)" });
    figure.append(probe);
    const { color: dim, backgroundColor: track, borderTopColor: line, outlineColor: page } = getComputedStyle(probe);
    probe.remove();
    const nameHeight = floor(pen, at, { dim, track, line, page });
    tips = [];
    if (data.mesh.length) drawMesh(pen, at);
    else drawStems(pen, at);
    nameHeight();
    canvas.dataset.turn = view.turn.toFixed(3);
  }

  function path(pen, points) {
    pen.beginPath();
    points.forEach(([x, y], i) => (i ? pen.lineTo(x, y) : pen.moveTo(x, y)));
  }

  /** The floor and the axes; the name of the height is for later, since the surface may stand behind it. */
  function floor(pen, at, { dim, track, line, page }) {
    const corners = [[-1, -1], [1, -1], [1, 1], [-1, 1]];
    path(pen, corners.map(([x, y]) => at(x, y, 0)));
    pen.closePath();
    pen.fillStyle = track;
    pen.fill();
    pen.strokeStyle = line;
    for (const step of [-0.5, 0, 0.5]) {
      for (const ends of [[[step, -1], [step, 1]], [[-1, step], [1, step]]]) {
        path(pen, ends.map(([x, y]) => at(x, y, 0)));
        pen.stroke();
      }
    }
    pen.fillStyle = pen.strokeStyle = dim;
    pen.textBaseline = "middle";
    const front = depth(0, 1) > 0 ? 1 : -1, side = depth(1, 0) > 0 ? 1 : -1;
    const [xs, ys] = [data.x_ends ?? [0, data.columns - 1], data.y_ends ?? [0, data.rows - 1]];
    /** Text whose part `before` stands left of x, moved to where all of it is on the canvas. */
    const label = (text, x, y, before, outlined = false) => {
      const wide = pen.measureText(text).width, room = (canvas.clientWidth || 480) - wide;
      const left = Math.max(0, Math.min(x - before * wide, room));
      pen.textAlign = "left";
      if (outlined) pen.strokeText(text, left, y);
      pen.fillStyle = dim;
      pen.fillText(text, left, y);
    };
    const beside = (text, edge, outside) => {
      const [x, y] = at(...outside, 0);
      label(text, x, y, x > at(...edge, 0)[0] ? 0 : 1);
    };
    [[-0.9, short(xs[0])], [0, data.x], [0.9, short(xs[1])]].forEach(([share, text]) => beside(text, [share, front], [share, 1.12 * front]));
    [[-0.9, short(ys[0])], [0, data.y], [0.9, short(ys[1])]].forEach(([share, text]) => beside(text, [side, share], [1.12 * side, share]));
    const left = corners.reduce((a, b) => (at(...a, 0)[0] <= at(...b, 0)[0] ? a : b));
    path(pen, [at(...left, 0), at(...left, 1)]);
    pen.stroke();
    for (const tick of roundTicks(0, data.reach, 4)) {
      const [x, y] = at(...left, tick / data.reach);
      label(short(tick), x - 6, y, 1);
    }
    const [x, y] = at(...left, 1);
    return () => {
      pen.strokeStyle = page;
      pen.lineWidth = 4;
      label(data.z, x, y - 16, 0.5, true);
    };
  }

  function drawStems(pen, at) {
    const placed = data.stems.map((stem) => ({ stem, where: spot(stem[0], stem[1]) }));
    placed.sort((a, b) => depth(...a.where) - depth(...b.where));
    pen.lineWidth = 1.5;
    for (const { stem, where } of placed) {
      const high = stem[2] / data.reach, top = at(...where, high);
      path(pen, [at(...where, 0), top]);
      pen.strokeStyle = shade(high);
      pen.stroke();
      const row = data.row_names[stem[1]] ?? `${data.y} ${stem[1]}`;
      tips.push({ at: top, text: `${row}, ${data.x} ${stem[0]}`, value: stem[2] });
    }
  }

  function drawMesh(pen, at) {
    const cells = [];
    for (let row = 0; row < data.rows - 1; row++) for (let column = 0; column < data.columns - 1; column++) cells.push([column, row]);
    const nearness = ([column, row]) => depth(...spot(column + 0.5, row + 0.5));
    cells.sort((a, b) => nearness(a) - nearness(b));
    pen.lineWidth = 0.75;
    pen.strokeStyle = "rgb(255 255 255 / .7)";
    for (const [column, row] of cells) {
      const around = [[column, row], [column + 1, row], [column + 1, row + 1], [column, row + 1]];
      const heights = around.map(([c, r]) => data.mesh[r][c] / data.reach);
      path(pen, around.map(([c, r], i) => at(...spot(c, r), heights[i])));
      pen.closePath();
      pen.fillStyle = shade((heights[0] + heights[1] + heights[2] + heights[3]) / 4);
      pen.fill();
      pen.stroke();
    }
    const value = ([low, high], share) => short(low + (high - low) * share);
    data.mesh.forEach((heights, row) => heights.forEach((height, column) => {
      const across = value(data.x_ends ?? [0, data.columns - 1], column / (data.columns - 1));
      const deep = value(data.y_ends ?? [0, data.rows - 1], row / (data.rows - 1));
      tips.push({ at: at(...spot(column, row), height / data.reach), text: `${data.x} ${across}, ${data.y} ${deep}`, value: height });
    }));
  }

  /** Show what stands nearest to the pointer. */
  function read(event) {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    let best = null, least = 16 ** 2;
    for (const one of tips) {
      const distance = (one.at[0] - x) ** 2 + (one.at[1] - y) ** 2;
      if (distance < least) [best, least] = [one, distance];
    }
    tip.hidden = !best;
    if (!best) return;
    tip.replaceChildren(make("div", {}, make("span", {}, best.text), make("span", {}, short(best.value))));
    tip.style.left = `${Math.max(0, Math.min(best.at[0] + 10, canvas.clientWidth - tip.offsetWidth))}px`;
    tip.style.top = `${Math.max(0, best.at[1] + canvas.offsetTop - tip.offsetHeight - 8)}px`;
  }

  function turn(across, up) {
    view.turn += across;
    view.tilt = Math.min(1.4, Math.max(0.1, view.tilt + up));
    tip.hidden = true;
    redrawAll();
  }

  canvas.addEventListener("pointerdown", (event) => canvas.setPointerCapture(event.pointerId));
  canvas.addEventListener("pointermove", (event) => {
    if (event.buttons) turn(-event.movementX * 0.008, event.movementY * 0.006);
    else read(event);
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("dblclick", () => { Object.assign(view, { turn: firstTurn, tilt: firstTilt }); redrawAll(); });
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [0.1, 0], ArrowRight: [-0.1, 0], ArrowUp: [0, 0.08], ArrowDown: [0, -0.08] }[event.key];
    if (!move) return;
    event.preventDefault();
    turn(...move);
  });
  let width = 0;
  new ResizeObserver(() => { if (canvas.clientWidth !== width) { width = canvas.clientWidth; draw(); } }).observe(canvas);
  draw();
  return draw;
}
