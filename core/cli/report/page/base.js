/* base.js -- elements, numbers, and what the reader has chosen. Text of runs reaches the page by textContent alone. */
const data = JSON.parse(document.getElementById("data").textContent);
const runs = data.runs;
const COLOURS = 6, DASHES = ["", "7 3", "2 3", "9 3 2 3"];

function el(tag, attributes, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attributes || {}))
    if (k.startsWith("on")) e.addEventListener(k.slice(2), v);
    else if (v !== null && v !== undefined && v !== false) e.setAttribute(k, v === true ? "" : v);
  e.append(...children.filter((c) => c !== null && c !== undefined));
  return e;
}
function svg(tag, attributes, ...children) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [k, v] of Object.entries(attributes || {})) if (v !== "") e.setAttribute(k, v);
  e.append(...children);
  return e;
}

/* ---- numbers ---- */
const isNumber = (v) => typeof v === "number" && isFinite(v);
function short(v) { /* for people: four digits */
  if (!isNumber(v)) return "–";
  const a = Math.abs(v);
  if (a !== 0 && (a < 1e-3 || a >= 1e9)) return v.toExponential(2).replace("e+", "e");
  return a >= 1000 ? Math.round(v).toLocaleString("en") : String(Number(v.toPrecision(4)));
}
const exact = (v) => (isNumber(v) ? String(v) : "–"); /* as the file has it */
const count = (v) => (isNumber(v) ? v.toLocaleString("en") : "–");
const ms = (v) => (isNumber(v) ? `${short(v)} ms` : "–");
const percent = (v) => (isNumber(v) ? `${Number(v.toPrecision(v >= 10 ? 3 : 2))} %` : "–");
function bytes(v) {
  if (!isNumber(v)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; v >= 1024 && i < 4; i++) v /= 1024;
  return `${Number(v.toPrecision(3))} ${units[i]}`;
}
function duration(s) {
  if (!isNumber(s)) return "–";
  if (s < 60) return `${Number(s.toPrecision(3))} s`;
  const h = Math.floor(s / 3600), m = Math.floor(s / 60) % 60;
  return h ? `${h} h ${m} min` : `${m} min ${Math.round(s) % 60} s`;
}
const when = (s) => (s > 0 ? new Date(s * 1000).toLocaleString("sv") : "–");
const mean = (list) => list.reduce((a, b) => a + b, 0) / list.length;
function quantile(list, q) {
  const sorted = list.filter(isNumber).sort((a, b) => a - b);
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.round(q * (sorted.length - 1)))] : NaN;
}
const median = (list) => { /* of an even number the mean of the two in the middle */
  const sorted = list.filter(isNumber).sort((a, b) => a - b), n = sorted.length;
  return n ? (sorted[(n - 1) >> 1] + sorted[n >> 1]) / 2 : NaN;
};
/* The index of the number of an ascending list that is nearest to x. */
function nearest(list, x) {
  let a = 0, b = list.length - 1;
  while (b - a > 1) {
    const m = (a + b) >> 1;
    if (list[m] < x) a = m;
    else b = m;
  }
  return b >= 0 && Math.abs(list[b] - x) < Math.abs(list[a] - x) ? b : a;
}

/* ---- what the reader has chosen; kept while the page loads itself again ---- */
const chosen = Object.assign({smoothing: 0.6, log: false, hidden: [], run: 0, theme: "system", paused: false, metric: "slower", part: "mean"},
  (() => { try { return JSON.parse(sessionStorage.getItem("ddpengine-report")) || {}; } catch (e) { return {}; } })());
const listeners = [];
function choose(key, value) {
  chosen[key] = value;
  try { sessionStorage.setItem("ddpengine-report", JSON.stringify(chosen)); } catch (e) { /* a page that may keep nothing */ }
  for (const f of listeners) f(key);
}
function onChoice(keys, f) { listeners.push((k) => keys.includes(k) && f()); }

/* ---- runs ---- */
const colour = (i) => `var(--c${i % COLOURS})`;
const dash = (i) => DASHES[Math.floor(i / COLOURS) % DASHES.length];
const swatch = (i, dashed) => svg("svg", {class: "swatch", viewBox: "0 0 22 10", "aria-hidden": "true"},
  svg("line", {x1: 0, x2: 22, y1: 5, y2: 5, stroke: colour(i), "stroke-width": 3, "stroke-dasharray": dashed || dash(i)}));
const block = (c) => el("span", {class: "block", style: `background:${c}`, "aria-hidden": "true"});
const shown = (i) => !chosen.hidden.includes(runs[i].name);
const title = (field) => ({loss: "Loss", lr: "Learning rate", samples_per_s: "Throughput", step_ms: "Time of a step", grad_norm: "Norm of the gradients",
  noise_scale: "Gradient noise scale", eval_loss: "Loss of evaluations", data_ms: "Waiting for data", wait_ms: "Waiting for other ranks"})[field] ||
  (field.startsWith("eval_") ? `Evaluations: ${field.slice(5).replace(/_/g, " ")}` : field.replace(/_/g, " "));
const unit = (field) => (field === "samples_per_s" ? "samples/s" : field.endsWith("_ms") ? "ms" : field === "noise_scale" ? "samples" : "");

/* ---- tables ---- */
function table(caption, head, rows) { /* head: names, those that begin with "#" of numbers; cells: texts or elements */
  const numeric = head.map((h) => h.startsWith("#"));
  return el("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": `Table: ${caption}`},
    el("table", {}, el("thead", {}, el("tr", {}, ...head.map((h, i) => el("th", {scope: "col", class: numeric[i] ? "n" : null}, h.replace("#", ""))))),
      el("tbody", {}, ...rows.map((r) => (r instanceof Node ? r : el("tr", {}, ...r.map((c, i) => el("td", {class: numeric[i] ? "n" : "value"}, c))))))));
}
/* A share with a bar of up to 100 pixels. */
const barred = (share, most) => el("span", {class: "barred"}, percent(share), el("span", {"aria-hidden": "true"}, el("span", {class: "meter", style: `width:${(100 * (share || 0)) / most}px`})));
/* Built when it is opened. */
function detailed(summary, build) {
  const d = el("details", {}, el("summary", {}, summary));
  d.addEventListener("toggle", () => {
    while (d.children.length > 1) d.lastChild.remove();
    if (d.open) d.append(build());
  });
  return d;
}
const section = (id, name, ...children) => el("section", {id, "aria-labelledby": `${id}-h`}, el("h2", {id: `${id}-h`}, name), ...children);
