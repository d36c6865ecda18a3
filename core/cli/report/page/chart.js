/* chart.js -- a frame with axes and a cursor, which the mouse, a finger or the arrow keys move. What is inside is painted by
 * its owner. To a screen reader the cursor is a slider whose value is read out; the figures are in a table below. */
function niceTicks(low, high, about) {
  const step0 = (high - low) / about, power = 10 ** Math.floor(Math.log10(step0)), r = step0 / power;
  const step = power * (r < 1.5 ? 1 : r < 3.5 ? 2 : r < 7.5 ? 5 : 10), out = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) out.push(Number(v.toPrecision(12)));
  return out;
}
function logTicks(low, high) {
  const out = [], many = Math.log10(high / low) < 1.2;
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++)
    for (const m of many ? [1, 2, 3, 5, 7] : Math.log10(high / low) < 3 ? [1, 3] : [1]) {
      const v = Number((m * 10 ** e).toPrecision(6));
      if (v >= low * 0.999 && v <= high * 1.001) out.push(v);
    }
  return out.length > 1 ? out : niceTicks(low, high, 4);
}
function tick(v) {
  const a = Math.abs(v);
  if (a >= 1e6) return `${Number((v / 1e6).toPrecision(4))}M`;
  if (a >= 1e4) return `${Number((v / 1e3).toPrecision(4))}k`;
  return a !== 0 && a < 1e-3 ? v.toExponential().replace("e+", "e") : String(Number(v.toPrecision(6)));
}

/* options: label, height, x: [low, high], xLabel(v), y: [low, high] or null, log, rows: names of rows instead of y,
 * paint(g, X, Y, frame), stops: ascending x of the cursor, tip(i): {head, rows: [{mark, name, value, y}]} */
class Plot {
  constructor(host, options) {
    this.host = host;
    this.box = el("div", {class: "chart", tabindex: 0, role: "slider"});
    this.tip = el("div", {class: "tip", hidden: true, "aria-hidden": "true"});
    host.append(this.box);
    this.at = -1;
    this.box.addEventListener("pointermove", (e) => this.point(e));
    this.box.addEventListener("pointerdown", (e) => this.point(e));
    this.box.addEventListener("pointerleave", () => this.move(-1));
    this.box.addEventListener("blur", () => this.move(-1));
    this.box.addEventListener("focus", () => this.box.matches(":focus-visible") && this.move(this.at < 0 ? this.o.stops.length - 1 : this.at));
    this.box.addEventListener("keydown", (e) => this.key(e));
    this.width = 0;
    this.update(options);
    new ResizeObserver(() => Math.abs(this.box.clientWidth - this.width) > 2 && this.box.clientWidth > 0 && this.draw()).observe(this.box);
  }
  update(options) {
    this.o = options;
    this.at = -1;
    this.draw();
  }
  draw() {
    const o = this.o, W = (this.width = this.box.clientWidth || 600), H = o.height || 240;
    const f = (this.frame = {left: o.left || 58, right: W - 10, top: 8, bottom: H - 26});
    const [x0, x1] = o.x[1] > o.x[0] ? o.x : [o.x[0] - 0.5, o.x[0] + 0.5];
    this.X = (v) => f.left + ((v - x0) / (x1 - x0)) * (f.right - f.left);
    this.back = (px) => x0 + ((px - f.left) / (f.right - f.left)) * (x1 - x0);
    const root = svg("svg", {viewBox: `0 0 ${W} ${H}`, "aria-hidden": "true"});
    if (o.y) this.axisY(root, f, o);
    else this.Y = (v) => f.bottom - v * (f.bottom - f.top);
    for (const v of (o.xTicks || niceTicks(x0, x1, Math.max(2, Math.floor((W - 80) / 110)))).filter((v) => o.xLabel || v === Math.round(v))) {
      const edge = this.X(v) > f.right - 20 ? "end" : "middle";
      root.append(svg("text", {x: this.X(v), y: H - 8, "text-anchor": edge}, o.xLabel ? o.xLabel(v) : tick(v)));
    }
    root.append(svg("line", {class: "axis", x1: f.left, x2: f.right, y1: f.bottom, y2: f.bottom}));
    const clip = `clip${Plot.number++}`, inner = svg("g", {"clip-path": `url(#${clip})`});
    root.append(svg("clipPath", {id: clip}, svg("rect", {x: f.left, y: f.top - 3, width: Math.max(1, f.right - f.left), height: f.bottom - f.top + 4})), inner);
    o.paint(inner, this.X, this.Y, f, root);
    this.over = svg("g", {});
    root.append(this.over);
    this.box.replaceChildren(root, this.tip);
    this.box.setAttribute("aria-label", o.label);
    this.box.setAttribute("aria-valuemin", 0);
    this.box.setAttribute("aria-valuemax", Math.max(0, o.stops.length - 1));
    this.move(this.at);
  }
  axisY(root, f, o) {
    let [low, high] = o.y;
    if (!(high > low)) [low, high] = low > 0 && o.log ? [low / 2, low * 2] : [low - Math.abs(low || 1) * 0.5, low + Math.abs(low || 1) * 0.5];
    const share = o.log ? (v) => Math.log(Math.max(v, low) / low) / Math.log(high / low) : (v) => (v - low) / (high - low);
    this.Y = (v) => f.bottom - share(v) * (f.bottom - f.top);
    for (const v of o.log ? logTicks(low, high) : niceTicks(low, high, 5)) {
      root.append(svg("line", {class: "grid", x1: f.left, x2: f.right, y1: this.Y(v), y2: this.Y(v)}),
        svg("text", {x: f.left - 7, y: this.Y(v) + 4, "text-anchor": "end"}, tick(v)));
    }
  }
  point(e) {
    const r = this.box.getBoundingClientRect();
    this.move(this.o.stops.length ? nearest(this.o.stops, this.back(e.clientX - r.left)) : -1);
  }
  key(e) {
    const last = this.o.stops.length - 1, big = Math.max(1, Math.round(last / 10)), now = this.at < 0 ? last : this.at;
    const to = {ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, PageUp: now + big, PageDown: now - big, Home: 0, End: last}[e.key];
    if (e.key === "Escape") this.move(-1);
    if (to === undefined) return;
    e.preventDefault();
    this.move(Math.max(0, Math.min(last, to)));
  }
  move(at) {
    const o = this.o;
    this.at = at;
    this.over.replaceChildren();
    this.tip.hidden = at < 0 || !o.stops.length;
    this.box.setAttribute("aria-valuenow", Math.max(0, at));
    const said = o.stops.length ? o.tip(at < 0 ? o.stops.length - 1 : at) : {head: "nothing yet", rows: []};
    this.box.setAttribute("aria-valuetext", [said.head, ...said.rows.map((r) => `${r.name} ${r.value}`)].join(", "));
    if (this.tip.hidden) return;
    const x = this.X(o.stops[at]);
    this.over.append(svg("line", {class: "cursor", x1: x, x2: x, y1: this.frame.top, y2: this.frame.bottom}));
    for (const r of said.rows)
      if (isNumber(r.y)) this.over.append(svg("circle", {cx: r.x === undefined ? x : this.X(r.x), cy: Math.max(this.frame.top, this.Y(r.y)), r: 3.5, fill: r.colour}));
    this.tip.replaceChildren(el("b", {}, said.head), ...said.rows.map((r) => el("div", {}, r.mark || el("span"), el("span", {}, r.name), el("span", {}, r.value))));
    const right = x > this.width / 2;
    this.tip.style.left = right ? "auto" : `${x + 12}px`;
    this.tip.style.right = right ? `${this.width - x + 12}px` : "auto";
    this.tip.style.top = "10px";
  }
}
Plot.number = 0;
