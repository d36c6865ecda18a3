/* curves.js -- loss, metrics, learning rate and throughput of all runs over the steps. */

/* Exponential moving average without its bias to 0, TensorBoard's; over the means of a series that has fewer points than steps. */
function smoothed(s, weight) {
  const steps = s.mean_step || s.step, values = s.mean || s.value, out = [];
  let average = 0, debias = 1;
  for (const v of values) {
    average = average * weight + v * (1 - weight);
    debias *= weight;
    out.push(average / (1 - debias));
  }
  return {step: steps, value: out};
}

function path(s, X, Y) {
  let d = "";
  for (let i = 0; i < s.step.length; i++) d += `${i ? "L" : "M"}${X(s.step[i]).toFixed(1)} ${Y(s.value[i]).toFixed(1)}`;
  return d;
}

/* lines: [{run, field, s, dashed, smooth}]; what is drawn of each: raw, and `line` over it. */
class Curve {
  constructor(field, extra) {
    this.field = field;
    this.extra = extra || [];
    this.card = el("div", {class: "card"});
    this.legend = el("div", {class: "legend"});
    this.note = el("p", {class: "quiet small"});
    this.card.append(el("h3", {}, title(field) + (unit(field) ? `, ${unit(field)}` : "")), this.legend);
    this.plot = null;
    onChoice(["smoothing", "log", "hidden"], () => this.draw());
  }
  lines() {
    const out = [];
    for (const f of [this.field, ...this.extra])
      runs.forEach((r, i) => {
        const s = r.series[f] || r.evals[f], evaluated = !r.series[f];
        if (s && s.step.length && shown(i)) out.push({run: i, field: f, s, evaluated, dashed: evaluated && f !== this.field ? "5 4" : dash(i)});
      });
    return out;
  }
  draw() {
    const lines = this.lines(), smooths = !["lr"].includes(this.field) && chosen.smoothing > 0;
    for (const l of lines) l.line = smooths && !l.evaluated ? smoothed(l.s, chosen.smoothing) : null;
    const log = chosen.log && this.field !== "lr" && lines.every((l) => l.s.value.every((v) => v > 0));
    const steps = lines.map((l) => [l.s.step[0], l.s.step[l.s.step.length - 1]]).flat();
    const longest = lines.reduce((a, l) => (a && a.s.step.length >= l.s.step.length ? a : l), null);
    const options = {
      label: `${title(this.field)} over the steps`, height: this.card.classList.contains("wide") ? 340 : 220,
      x: steps.length ? [Math.min(...steps), Math.max(...steps)] : [0, 1], y: this.range(lines, log), log,
      stops: longest ? longest.s.step : [], paint: (g, X, Y) => this.paint(g, X, Y, lines), tip: (i) => this.tip(lines, longest.s.step[i]),
    };
    this.legend.replaceChildren(...(runs.length > 1 || this.extra.length ? lines.map((l) => el("span", {}, swatch(l.run, l.dashed), this.name(l))) : []),
      ...(chosen.log && !log && this.field !== "lr" ? [el("span", {}, "not logarithmic: it is not above 0 everywhere")] : []));
    if (this.plot) this.plot.update(options);
    else {
      this.plot = new Plot(this.card, options);
      this.card.append(this.note, detailed("Table", () => this.table()));
    }
    const left = this.outside;
    this.note.textContent = left ? `${count(left)} of the points lie outside the scale; the table has them.` : "";
    this.note.hidden = !left;
  }
  name(l) {
    const what = this.extra.length || runs.length === 1 ? (l.evaluated && this.extra.length ? "evaluation" : this.extra.length ? "training" : title(l.field)) : "";
    return runs.length > 1 ? [runs[l.run].name, what].filter(Boolean).join(", ") : what;
  }
  /* Rates and times have first steps that say nothing of the others: these may leave the scale. */
  range(lines, log) {
    const clips = ["samples_per_s", "step_ms", "data_ms", "wait_ms"].includes(this.field);
    let low = Infinity, high = -Infinity;
    this.outside = 0;
    for (const l of lines) {
      const values = clips ? [quantile(l.s.value, 0.02), quantile(l.s.value, 0.98), ...(l.s.mean || []).slice(1)] : l.s.value;
      for (const v of values) low = Math.min(low, v), high = Math.max(high, v);
    }
    if (!(low <= high)) return [0, 1];
    if (this.field === "samples_per_s" && !log) low = Math.min(low, 0);
    const room = (high - low) * (clips ? 0.1 : 0.03);
    const [a, b] = log ? [low / (high / low) ** 0.03, high * (high / low) ** 0.03] : [clips && low >= 0 ? Math.max(0, low - room) : low - room, high + room];
    if (clips) for (const l of lines) this.outside += l.s.value.filter((v) => v < a || v > b).length;
    return [a, b];
  }
  paint(g, X, Y, lines) {
    for (const l of lines) {
      const own = {fill: "none", stroke: colour(l.run), "stroke-dasharray": l.dashed, "stroke-width": 1.8, "stroke-linejoin": "round"};
      g.append(svg("path", {...own, d: path(l.s, X, Y), ...(l.line ? {"stroke-width": 1, opacity: 0.28, "stroke-dasharray": ""} : {})}));
      if (l.line) g.append(svg("path", {...own, d: path(l.line, X, Y)}));
      if (l.evaluated && l.s.step.length < 60)
        l.s.step.forEach((s, i) => g.append(svg("circle", {cx: X(s), cy: Y(l.s.value[i]), r: 2.6, fill: colour(l.run)})));
    }
  }
  tip(lines, step) {
    const rows = [];
    for (const l of lines) {
      const i = nearest(l.s.step, step), at = l.s.step[i], k = l.line ? nearest(l.line.step, step) : 0;
      rows.push({mark: swatch(l.run, l.dashed), name: this.name(l) || title(l.field), colour: colour(l.run), x: l.line ? l.line.step[k] : at,
        y: l.line ? l.line.value[k] : l.s.value[i],
        value: exact(l.s.value[i]) + (l.line ? ` (smoothed ${short(l.line.value[k])})` : "") + (at === step ? "" : ` at ${count(at)}`)});
    }
    return {head: `Step ${count(step)}`, rows};
  }
  table() {
    const lines = this.lines(), wanted = new Map();
    for (const l of lines)
      for (let k = 0, n = l.s.step.length, m = Math.min(n, 60); k < m; k++) {
        const i = Math.round((k * (n - 1)) / Math.max(1, m - 1));
        wanted.set(l.s.step[i], true);
      }
    const all = [...wanted.keys()].sort((a, b) => a - b);
    return table(`${title(this.field)}, table`, ["#Step", ...lines.map((l) => `#${this.name(l) || title(l.field)}`)],
      all.map((s) => [count(s), ...lines.map((l) => { const i = nearest(l.s.step, s); return l.s.step[i] === s ? exact(l.s.value[i]) : ""; })]));
  }
}

function controls() {
  const smoothing = el("input", {type: "range", min: 0, max: 0.99, step: 0.01, value: chosen.smoothing, id: "smoothing"});
  const value = el("output", {for: "smoothing"}, String(chosen.smoothing)), log = el("input", {type: "checkbox"});
  log.checked = chosen.log;
  smoothing.addEventListener("input", () => { value.textContent = smoothing.value; choose("smoothing", Number(smoothing.value)); });
  log.addEventListener("change", () => choose("log", log.checked));
  return el("div", {class: "card controls", role: "group", "aria-label": "How the curves are drawn"},
    el("label", {}, "Smoothing", smoothing, value), el("label", {}, log, "Logarithmic"));
}

function curvesSection() {
  const fields = new Set(), evals = new Set(), first = ["loss"], later = ["lr", "samples_per_s", "grad_norm"];
  for (const r of runs) {
    Object.keys(r.series).forEach((f) => fields.add(f));
    Object.keys(r.evals).forEach((f) => evals.add(f));
  }
  const times = ["step_ms", "data_ms", "wait_ms"];
  const order = [...first.filter((f) => fields.has(f)), ...[...evals].filter((f) => f !== "eval_loss" || !fields.has("loss")), ...later.filter((f) => fields.has(f)),
    ...[...fields].filter((f) => ![...first, ...later, ...times].includes(f))];
  const charts = order.map((f) => new Curve(f, f === "loss" && evals.has("eval_loss") ? ["eval_loss"] : []));
  if (charts.length) charts[0].card.classList.add("wide");
  if (charts.length % 2 === 0 && charts.length > 1) charts[charts.length - 1].card.classList.add("wide");
  const s = section("curves", "Curves", controls(), el("div", {class: "charts"}, ...charts.map((c) => c.card)));
  if (!charts.length) s.append(el("p", {class: "quiet"}, "No step has been written yet."));
  return [s, () => charts.forEach((c) => c.draw())];
}
