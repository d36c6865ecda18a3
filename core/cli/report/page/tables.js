/* tables.js -- the runs, their settings, parameters, events and machines. */
function best(s) { return isNumber(s.best) ? `${s.metric.replace(/^eval_/, "").replace(/_/g, " ")} ${short(s.best)} at ${count(s.best_step)}` : "–"; }

/* Of a run that is looked at while it goes on nobody knows whether it has ended: it may save, or wait for a rank. */
function stateText(s) {
  if (!isNumber(s.silent_s)) return s.text;
  return `${data.follow ? "" : `${s.text}, `}no line for ${s.silent_s < 600 ? `${s.silent_s} s` : duration(s.silent_s)}`;
}

function runsSection() {
  const several = runs.length > 1;
  const rows = runs.map((r, i) => {
    const s = r.state, start = r.start || {}, sum = r.summary || {};
    const steps = s.planned_steps > s.steps ? `${count(s.steps)} of ${count(s.planned_steps)}` : count(s.steps);
    const box = el("input", {type: "checkbox", "aria-label": `show ${r.name}`});
    box.checked = shown(i);
    box.addEventListener("change", () => choose("hidden", box.checked ? chosen.hidden.filter((n) => n !== r.name) : [...chosen.hidden, r.name]));
    return [el("span", {class: "name", title: r.dir}, several ? box : null, several ? swatch(i) : null, r.name), el("span", {class: s.good ? null : "bad"}, stateText(s)), steps, exact(s.loss), best(s),
      duration(s.seconds), isNumber(sum.samples_per_s) ? short(sum.samples_per_s) : "–", isNumber(sum.median_step_ms) ? short(sum.median_step_ms) : "–",
      String(start.world_size || "–"), [start.backend, start.device, start.precision].filter(Boolean).join(", ") || "–"];
  });
  const s = section("runs", several ? `Runs` : "Run", el("div", {class: "card"}, table("Runs", ["Run", "State", "#Steps", "#Loss", "Best", "#Time", "#Samples/s", "#ms a step", "#Ranks", "On"], rows)));
  for (const r of runs)
    if (r.ranks && r.ranks.sentence) s.append(el("p", {class: "lead sentence"}, several ? `${r.name}: ${r.ranks.sentence}` : r.ranks.sentence));
  return s;
}

/* ---- settings ---- */
function settingsSection() {
  const keys = new Map();
  runs.forEach((r, i) => (r.settings || []).forEach(([sec, key, value]) => {
    if (!keys.has(sec)) keys.set(sec, new Map());
    if (!keys.get(sec).has(key)) keys.get(sec).set(key, runs.map(() => null));
    keys.get(sec).get(key)[i] = value;
  }));
  if (!keys.size) return section("settings", "Settings", el("p", {class: "quiet"}, "No settings.ini can be read: these runs are of an earlier version."));
  const known = runs.map((r) => r.settings !== null), several = runs.length > 1;
  const own = (sec, key) => sec === "output" || (sec === "checkpoint" && key === "dir"); /* where a run writes is its own */
  let different = 0;
  const only = el("input", {type: "checkbox"}), rows = [];
  for (const [sec, entries] of keys) {
    const head = el("tr", {class: "section"}, el("th", {scope: "rowgroup", colspan: runs.length + 1}, `[${sec}]`)), from = rows.length;
    let any = false;
    rows.push(head);
    for (const [key, values] of entries) {
      const differs = several && !own(sec, key) && new Set(values.filter((_, i) => known[i])).size > 1;
      different += differs;
      any = any || differs;
      rows.push(el("tr", {class: differs ? "differs" : null, "data-same": differs ? null : "yes"}, el("th", {scope: "row"}, key, differs ? el("span", {class: "tag", style: "margin-left:8px"}, "differs") : null),
        ...values.map((v, i) => el("td", {class: "value"}, v === null ? (known[i] ? "–" : "?") : v === "" ? "(empty)" : v))));
    }
    if (!any) rows[from].setAttribute("data-same", "yes");
  }
  const sheet = table("Settings", ["Setting", ...runs.map((r) => r.name)], rows);
  const show = () => rows.forEach((r) => (r.hidden = only.checked && r.hasAttribute("data-same")));
  only.addEventListener("change", show);
  only.checked = several && different > 0;
  show();
  const card = el("div", {class: "card"});
  if (several) card.append(el("div", {class: "bar"}, el("label", {}, only, "Only what differs"), el("span", {class: "quiet"}, different === 1 ? "1 setting differs" : `${different} settings differ`)));
  card.append(several ? sheet : detailed(`All ${[...keys.values()].reduce((a, m) => a + m.size, 0)} settings, defaults included`, () => sheet));
  return section("settings", "Settings", card);
}

/* ---- of one run ---- */
function parametersCard(r) {
  const list = r.run && Array.isArray(r.run.parameters) ? r.run.parameters.filter((p) => p && typeof p.name === "string" && Array.isArray(p.shape) && p.shape.every((d) => d > 0)) : null, total = (r.start || {}).parameters;
  if (!list) return el("div", {class: "card wide"}, el("h3", {}, "Parameters"), el("p", {class: "quiet"}, isNumber(total) ? `${count(total)} in all; this run has no list of them.` : "This run has no list of them."));
  const size = (p) => p.shape.reduce((a, b) => a * b, 1), layers = new Map();
  for (const p of list) {
    const cut = p.name.lastIndexOf("."), layer = cut > 0 ? p.name.slice(0, cut) : p.name, l = layers.get(layer) || {count: 0, trained: 0, shapes: []};
    l.count += size(p);
    l.trained += p.trained === false ? 0 : size(p);
    l.shapes.push(`${cut > 0 ? p.name.slice(cut + 1) : ""} ${p.shape.join("×") || "1"}`.trim());
    layers.set(layer, l);
  }
  const all = list.reduce((a, p) => a + size(p), 0), most = Math.max(...[...layers.values()].map((l) => l.count), 1), trained = [...layers.values()].reduce((a, l) => a + l.trained, 0);
  return el("div", {class: "card wide"}, el("h3", {}, "Parameters by layer"),
    el("p", {class: "quiet small"}, `${count(all)} in ${layers.size} layers${trained < all ? `, of which ${count(trained)} are trained` : ""}; ${bytes(4 * all)} in f32.`),
    table("Parameters by layer", ["Layer", "Shapes", "#Parameters", "#Share", ...(trained < all ? ["Trained"] : [])], [...layers].map(([name, l]) => [name, l.shapes.join(", "), count(l.count), barred((100 * l.count) / all, (100 * most) / all), ...(trained < all ? [l.trained === l.count ? "yes" : l.trained ? "partly" : "no"] : [])])));
}

function eventsCard(r) {
  const rest = (e) => Object.entries(e).filter(([k]) => !["event", "time", "text", "step"].includes(k)).map(([k, v]) => `${k} ${typeof v === "object" && v ? JSON.stringify(v) : v}`).join(", ");
  const warnings = r.events.filter((e) => e.event === "warning").length;
  const build = () => table("Events", ["Time", "#Step", "Event", "What"], r.events.map((e) => [when(e.time), isNumber(e.step) ? count(e.step) : "", el("span", {class: e.event === "warning" ? "bad" : null}, String(e.event)), e.text ? String(e.text) : rest(e)]));
  const card = el("div", {class: "card wide"}, el("h3", {}, "Events"), el("p", {class: "quiet small"}, `${count(r.events.length + r.events_left_out)} in metrics.jsonl beside steps and evaluations` +
    (r.events_left_out ? `, ${count(r.events_left_out)} of them are left out here` : "") + (warnings ? `; ${count(warnings)} ${warnings === 1 ? "is a warning" : "are warnings"}.` : ".")));
  card.append(r.events.length <= 12 ? build() : detailed("All events", build));
  return card;
}

function machineCard(r) {
  const m = (r.run && r.run.machine) || {}, start = r.start || {}, hosts = (r.ranks && r.ranks.hosts) || [];
  const rows = [["ddpengine", start.version], ["model", start.model], ["device", start.device], ["backend", start.backend], ["precision", start.precision], ["ranks", start.world_size], ["global batch", start.global_batch],
    ["buckets of", isNumber(start.bucket_size) ? bytes(start.bucket_size) : null], ["hook", start.hook], ["hosts", [...new Set(hosts)].map((h) => `${h} (${hosts.filter((x) => x === h).length} ranks)`).join(", ")],
    ["host of rank 0", m.host], ["hardware", m.device], ["library", m.library], ["threads of a rank", m.threads], ["processors", m.processors], ["memory", isNumber(m.memory_bytes) ? bytes(m.memory_bytes) : null],
    ["system", m.system],
    ["largest memory of rank 0", r.summary && isNumber(r.summary.peak_rss_bytes) ? bytes(r.summary.peak_rss_bytes) : null], ["begun", when(r.state.started)], ["folder", r.dir]];
  return el("div", {class: "card wide"}, el("h3", {}, "The machine, and what ran on it"),
    el("table", {}, el("tbody", {}, ...rows.filter((x) => x[1] !== undefined && x[1] !== null && x[1] !== "").map(([k, v]) => el("tr", {}, el("th", {scope: "row"}, k), el("td", {class: "value"}, String(v)))))));
}
