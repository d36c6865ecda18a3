/* ranks.js -- where the time of a step goes: its parts, the times of every rank, and the buckets of a few steps. */
const PARTS = [["compute", "computing"], ["update", "update"], ["data", "waiting for data"], ["wait", "waiting for other ranks"], ["other", "other"]];
const part = (name) => `var(--${name})`;

/* Means of `list` over parts of equal length. */
function binned(list, bins) {
  const n = list.length, m = Math.min(n, bins);
  return Array.from({length: m}, (_, k) => {
    const own = list.slice(Math.floor((k * n) / m), Math.floor(((k + 1) * n) / m)).filter(isNumber);
    return own.length ? mean(own) : NaN;
  });
}
/* {step: last of each bin, parts: {compute: [..], ..}, names}: of ranks.jsonl, or of rank 0's metrics.jsonl. */
function partsOf(r, bins) {
  const ranks = r.ranks;
  if (ranks) {
    const rank = chosen.part === "mean" ? -1 : Math.min(Number(chosen.part), ranks.ranks - 1);
    const of = (f) => ranks.step.map((_, k) => (rank >= 0 ? ranks[f][rank][k] : (() => { const own = ranks[f].map((row) => row[k]).filter(isNumber); return own.length ? mean(own) : NaN; })()));
    const step = of("step_ms"), p = {compute: of("compute_ms"), update: of("update_ms"), data: of("data_ms"), wait: of("wait_ms")};
    p.other = step.map((v, k) => Math.max(0, v - p.compute[k] - p.update[k] - p.data[k] - p.wait[k]));
    const n = ranks.step.length, m = Math.min(n, bins);
    for (const k of Object.keys(p)) p[k] = binned(p[k], bins);
    return {step: Array.from({length: m}, (_, k) => ranks.step[Math.floor(((k + 1) * n) / m) - 1]), parts: p, first: ranks.step[0] - ranks.steps[0] + 1};
  }
  const s = r.series.step_ms;
  if (!s || !r.series.data_ms || !r.series.wait_ms) return null;
  const of = (f) => (r.series[f].mean || r.series[f].value), steps = s.mean_step || s.step;
  if (of("data_ms").length !== steps.length || of("wait_ms").length !== steps.length) return null;
  const n = steps.length, m = Math.min(n, bins), p = {data: binned(of("data_ms"), bins), wait: binned(of("wait_ms"), bins)};
  p.compute = binned(of("step_ms"), bins).map((v, k) => Math.max(0, v - p.data[k] - p.wait[k]));
  return {step: Array.from({length: m}, (_, k) => steps[Math.floor(((k + 1) * n) / m) - 1]), parts: p, first: steps[0], rest: true};
}
const partName = (k, d) => (k === "compute" && d.rest ? "computing and update" : PARTS.find((p) => p[0] === k)[1]);

function stepTime(r) {
  const host = el("div", {class: "card wide"}), d = partsOf(r, 120);
  host.append(el("h3", {}, "Parts of a step, ms"));
  if (!d) {
    host.append(el("p", {class: "quiet"}, "No times have been written yet."));
    return [host, () => {}];
  }
  const used = PARTS.map((p) => p[0]).filter((k) => d.parts[k] && d.parts[k].some((v) => v > 0));
  const edges = [d.first - 1, ...d.step], from = d.step.length > 3 ? 1 : 0; /* the first step warms up */
  const weighted = (list) => list.reduce((a, v, k) => (k >= from && isNumber(v) ? [a[0] + v * (edges[k + 1] - edges[k]), a[1] + edges[k + 1] - edges[k]] : a), [0, 0]);
  const average = Object.fromEntries(used.map((k) => [k, weighted(d.parts[k])]).map(([k, w]) => [k, w[0] / w[1]]));
  const total = used.reduce((a, k) => a + average[k], 0);
  host.append(el("div", {class: "legend"}, ...used.map((k) => el("span", {}, block(part(k)), `${partName(k, d)} ${short(average[k])} ms, ${percent((100 * average[k]) / total)}`))));
  const sums = d.step.map((_, k) => used.reduce((a, u) => a + (d.parts[u][k] || 0), 0)), high = Math.max(quantile(sums.slice(from), 0.98) * 1.1, 1e-6), above = sums.filter((v) => v > high).length;
  if (above) host.append(el("p", {class: "quiet small"}, `${above === 1 ? "One bar is" : `${above} bars are`} higher than the scale.`));
  return [host, () => {
    new Plot(host, {
      label: "Parts of a step over the steps", height: 260, x: [edges[0], edges[edges.length - 1]], y: [0, high], stops: d.step.map((s, k) => (edges[k] + s) / 2),
      paint: (g, X, Y) => d.step.forEach((s, k) => {
        let low = 0;
        for (const u of used) {
          const v = d.parts[u][k] || 0, x = X(edges[k]), w = Math.max(0.6, X(s) - x - (X(s) - x > 5 ? 1 : 0));
          g.append(svg("rect", {x, width: w, y: Y(low + v), height: Math.max(0, Y(low) - Y(low + v)), fill: part(u)}));
          low += v;
        }
      }),
      tip: (i) => ({head: `Steps ${count(edges[i] + 1)} to ${count(d.step[i])}`, rows: used.slice().reverse().map((u) => ({mark: block(part(u)), name: partName(u, d), value: ms(d.parts[u][i])}))
        .concat([{name: "a step", value: ms(sums[i])}])}),
    });
    host.append(detailed("Table", () => table("Parts of a step", ["#To step", ...used.map((u) => `#${partName(u, d)}, ms`), "#A step, ms"],
      d.step.map((s, k) => [count(s), ...used.map((u) => short(d.parts[u][k])), short(sums[k])]))));
  }];
}

/* ---- the heat map ---- */
const METRICS = {slower: ["Work more than the median of the others", "%"], own_ms: ["Work: computing, data, update", "ms"], compute_ms: ["Computing", "ms"], data_ms: ["Waiting for data", "ms"],
  update_ms: ["Update", "ms"], wait_ms: ["Waiting for other ranks", "ms"], step_ms: ["The whole step", "ms"], checkpoint_ms: ["Checkpoints", "ms"]};
function cellsOf(q, metric) {
  const work = (i, k) => q.compute_ms[i][k] + q.data_ms[i][k] + q.update_ms[i][k];
  const own = q.compute_ms.map((row, i) => row.map((v, k) => (v === null || q.data_ms[i][k] === null || q.update_ms[i][k] === null ? NaN : work(i, k))));
  if (metric === "own_ms") return own;
  if (metric !== "slower") return q[metric].map((row) => row.map((v) => (v === null ? NaN : v)));
  const middle = q.ranks > 32 ? q.step.map((_, k) => median(own.map((row) => row[k]))) : null; /* of so many one more does not matter */
  return own.map((row, i) => row.map((v, k) => 100 * (v / (middle ? middle[k] : median(own.filter((_, j) => j !== i).map((o) => o[k]))) - 1)));
}
/* Light to dark, or dark to light: lightness alone tells it. */
function heat(share, dark) {
  const stops = dark ? [[38, 44, 52], [150, 70, 30], [255, 214, 140]] : [[238, 241, 245], [240, 150, 70], [110, 15, 20]];
  const at = Math.min(1, Math.max(0, share)) * 2, i = Math.min(1, Math.floor(at));
  return stops[i].map((c, k) => Math.round(c + (stops[i + 1][k] - c) * (at - i)));
}
const isDark = () => chosen.theme === "dark" || (chosen.theme === "system" && matchMedia("(prefers-color-scheme: dark)").matches);

function image(cells, low, high, dark) {
  const canvas = el("canvas", {width: cells[0].length, height: cells.length}), c = canvas.getContext("2d"), pixels = c.createImageData(cells[0].length, cells.length);
  cells.forEach((row, i) => row.forEach((v, k) => pixels.data.set(isNumber(v) ? [...heat((v - low) / (high - low || 1), dark), 255] : [0, 0, 0, 0], 4 * (i * row.length + k))));
  c.putImageData(pixels, 0, 0);
  return canvas.toDataURL();
}

function heatMap(r) {
  const q = r.ranks, host = el("div", {class: "card wide"}), columns = q.step.length, picture = el("div");
  const select = el("select", {}, ...Object.entries(METRICS).map(([k, v]) => el("option", {value: k}, `${v[0]}, ${v[1]}`)));
  const scale = el("div", {class: "legend"});
  const name = (i) => `rank ${i}`;
  let plot = null, print = false;
  select.value = chosen.metric;
  select.addEventListener("change", () => choose("metric", select.value));
  host.append(el("h3", {}, "Ranks over time"), el("div", {class: "bar"}, el("label", {}, "Colour", select)), scale, picture);
  const draw = () => {
    const metric = METRICS[chosen.metric] ? chosen.metric : "slower", [what, u] = METRICS[metric], cells = cellsOf(q, metric), all = cells.flat();
    const low = metric === "slower" ? 0 : Math.max(0, quantile(all, 0.02)), high = metric === "slower" ? Math.max(20, quantile(all, 0.98)) : Math.max(quantile(all, 0.98), low * 1.01 + 1e-9);
    const dark = !print && isDark(), height = Math.max(14, Math.min(30, 640 / q.ranks));
    const gradient = [0, 0.25, 0.5, 0.75, 1].map((s) => `rgb(${heat(s, dark)})`).join(",");
    const ends = metric === "slower" ? ["as the median", `${percent(high)} more`] : [ms(low), ms(high)];
    scale.replaceChildren(el("span", {}, ends[0], el("span", {"aria-hidden": "true", style: `width:140px;height:10px;border-radius:2px;background:linear-gradient(90deg,${gradient})`}), ends[1]));
    const options = {
      label: `${what}, ranks over the steps`, left: 62, height: height * q.ranks + 36, x: [0, columns], stops: q.step.map((_, k) => k + 0.5),
      xTicks: niceTicks(0, Math.max(1, columns - 1), Math.max(2, Math.min(8, columns - 1, Math.floor(picture.clientWidth / 90)))).filter((v) => v >= 0 && v < columns && v === Math.round(v)).map((v) => v + 0.5), xLabel: (v) => count(q.step[Math.floor(v)]),
      paint: (g, X, Y, f, root) => {
        const each = (f.bottom - f.top) / q.ranks, every = Math.ceil(13 / each);
        g.append(svg("image", {href: image(cells, low, high, dark), x: f.left, y: f.top, width: f.right - f.left, height: f.bottom - f.top, preserveAspectRatio: "none", style: "image-rendering: pixelated"}));
        for (let i = 0; i < q.ranks; i++) {
          if (i > 0 && each > 8) g.append(svg("line", {x1: f.left, x2: f.right, y1: f.top + i * each, y2: f.top + i * each, stroke: "var(--card)", "stroke-width": 2}));
          if (i % every === 0) root.append(svg("text", {x: f.left - 7, y: f.top + (i + 0.5) * each + 4, "text-anchor": "end"}, name(i)));
        }
      },
      tip: (k) => ({head: `Steps ${count(q.step[k] - q.steps[k] + 1)} to ${count(q.step[k])}`, rows: cells.map((row, i) => [i, row[k]]).filter((c) => isNumber(c[1])).sort((a, b) => b[1] - a[1]).slice(0, 8)
        .map(([i, v]) => ({name: name(i) + (q.hosts[i] ? ` on ${q.hosts[i]}` : ""), value: u === "%" ? `${v < 0 ? "" : "+"}${percent(v)}` : ms(v)}))}),
    };
    if (plot) plot.update(options);
    else plot = new Plot(picture, options);
  };
  onChoice(["metric", "theme"], () => host.isConnected && draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => host.isConnected && draw());
  addEventListener("beforeprint", () => { print = true; if (host.isConnected) draw(); });
  addEventListener("afterprint", () => { print = false; if (host.isConnected) draw(); });
  host.append(detailed("Table of all ranks over time", () => {
    const cells = cellsOf(q, chosen.metric), every = Math.ceil(columns / 60);
    return table(METRICS[chosen.metric][0], ["#To step", ...cells.map((_, i) => `#rank ${i}`)], q.step.map((s, k) => [count(s), ...cells.map((row) => (isNumber(row[k]) ? short(row[k]) : "–"))]).filter((_, k) => k % every === every - 1 || k === columns - 1));
  }));
  return [host, draw];
}

function rankTable(r) {
  const q = r.ranks, more = (t, i) => 100 * (t.own_ms / median(q.totals.filter((_, j) => j !== i).map((o) => o.own_ms)) - 1);
  const rows = q.totals.map((t, i) => [el("span", {class: "name"}, `rank ${i}`, i === q.slowest ? el("span", {class: "tag"}, "most work") : null), q.hosts[i] || "–", short(t.own_ms), isNumber(more(t, i)) ? `${more(t, i) < 0 ? "" : "+"}${percent(more(t, i))}` : "–",
    short(t.compute_ms), short(t.data_ms), short(t.update_ms), short(t.wait_ms), short(t.step_ms), t.steps ? percent((100 * t.slowest_steps) / t.steps) : "–"]);
  return el("div", {class: "card wide"}, el("h3", {}, "Ranks, means of a step in ms"),
    el("p", {class: "quiet small"}, "Work is computing, waiting for data and the update: the rank with the most of it is the one that the others wait for. Each is compared with the median of the others."),
    table("Ranks, means of a step", ["Rank", "Host", "#Work", "#To the others", "#Computing", "#Data", "#Update", "#Waiting", "#Step", "#Slowest in"], rows));
}

/* ---- buckets on a timeline ---- */
function timeline(r) {
  const t = r.trace, host = el("div", {class: "card wide"});
  host.append(el("h3", {}, "Buckets on a timeline"));
  if (!t || !t.ranks.some((k) => k.spans.length)) {
    host.append(el("p", {class: "quiet"}, "This run has no trace. ", el("code", {}, "[output] trace_steps = 10-12"), " keeps one of a few steps, with what every bucket waits for."));
    return [host, () => {}];
  }
  const steps = [...new Set(t.ranks.flatMap((k) => k.spans.map((s) => s[3])))].sort((a, b) => a - b);
  const kind = (n) => ({compute: "compute", wait: "wait", update: "update"})[t.names[n]] || "reduce", picture = el("div");
  const select = el("select", {}, ...steps.map((s) => el("option", {value: s}, count(s))));
  const used = [...new Set(t.ranks.flatMap((k) => k.spans.map((s) => s[0])))], queued = t.ranks.some((k) => k.spans.some((s) => s[4])), lanes = queued ? 2 : 1;
  select.value = steps[steps.length - 1];
  host.append(el("div", {class: "bar"}, el("label", {}, "Step", select)),
    el("p", {class: "quiet small"}, "A row for each rank's trainer" + (queued ? ", and below it one for the thread that reduces buckets" : "") +
      ". Numbers are those of buckets. Ranks begin together here: their clocks are not compared."),
    el("div", {class: "legend"}, ...used.map((n) => el("span", {}, block(part(kind(n))), t.names[n].replace("_", "-")))), picture);
  const spansOf = (step) => t.ranks.map((k) => {
    const own = k.spans.filter((s) => s[3] === step), begin = Math.min(...own.map((s) => s[5]));
    return own.map((s) => ({rank: k.rank, what: t.names[s[0]], kind: kind(s[0]), bucket: s[1], bytes: s[2], lane: s[4] ? 1 : 0, from: (s[5] - begin) / 1000, to: (s[5] - begin + s[6]) / 1000}));
  });
  const text = (s) => s.what.replace("_", "-") + (s.bucket >= 0 ? ` of bucket ${s.bucket}` : "");
  let plot = null;
  const draw = () => {
    const lists = spansOf(Number(select.value)), all = lists.flat(), end = Math.max(1e-6, ...all.map((s) => s.to)), lane = 17, gap = 12;
    const stops = [...new Set(all.map((s) => (s.from + s.to) / 2))].sort((a, b) => a - b);
    const options = {
      label: `Spans of step ${select.value}`, left: 62, height: lists.length * (lanes * lane + gap) + 34, x: [0, end], xLabel: (v) => `${tick(v)} ms`, stops,
      paint: (g, X, Y, f, root) => lists.forEach((list, i) => {
        const top = f.top + i * (lanes * lane + gap);
        root.append(svg("text", {x: f.left - 7, y: top + (lanes * lane) / 2 + 4, "text-anchor": "end"}, `rank ${t.ranks[i].rank}`));
        for (const s of list) {
          const x = X(s.from), w = Math.max(1, X(s.to) - x - 0.5);
          g.append(svg("rect", {x, width: w, y: top + s.lane * lane, height: lane - 2, fill: part(s.kind), rx: 1.5}));
          if (s.bucket >= 0 && w > 16) g.append(svg("text", {x: x + w / 2, y: top + s.lane * lane + 11.5, "text-anchor": "middle", style: "fill: var(--card); font-size: 11px"}, String(s.bucket)));
        }
      }),
      tip: (i) => ({head: `${short(stops[i])} ms`, rows: all.filter((s) => s.from <= stops[i] && s.to >= stops[i]).slice(0, 10)
        .map((s) => ({mark: block(part(s.kind)), name: `rank ${s.rank}: ${text(s)}`, value: `${ms(s.to - s.from)}${s.bytes ? `, ${bytes(s.bytes)}` : ""}`}))}),
    };
    if (plot) plot.update(options);
    else plot = new Plot(picture, options);
  };
  select.addEventListener("change", draw);
  host.append(detailed("Table", () => table(`Spans of step ${select.value}`, ["Rank", "What", "#From, ms", "#Takes, ms", "#Size"],
    spansOf(Number(select.value)).flat().map((s) => [String(s.rank), text(s), short(s.from), short(s.to - s.from), s.bytes ? bytes(s.bytes) : ""]))));
  return [host, draw];
}

function kernels(r) {
  const p = r.profile;
  if (!p || !Array.isArray(p.rows)) return null;
  const most = Math.max(...p.rows.map((k) => k.share || 0), 1e-9);
  return el("div", {class: "card wide"}, el("h3", {}, "Kernels, means of a step"),
    table("Kernels", ["Kernel", "#Calls", "#ms", "#Share", "#GFLOP/s", "#GB/s", "#Of peak", "Limit"], p.rows.map((k) => [String(k.name), short(k.calls), short(k.ms), barred(k.share, most),
      short(k.gflops), short(k.gbytes_per_s), percent(k.percent_of_peak), k.limit || "–"])));
}
