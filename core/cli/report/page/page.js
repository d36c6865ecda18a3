/* page.js -- puts the sections together. */
function runSelect() {
  if (runs.length < 2) return null;
  const select = el("select", {}, ...runs.map((r, i) => el("option", {value: i}, r.name)));
  select.value = Math.min(chosen.run, runs.length - 1);
  select.addEventListener("change", () => choose("run", Number(select.value)));
  onChoice(["run"], () => (select.value = chosen.run));
  return el("div", {class: "bar"}, el("label", {}, "Run", select));
}
function partSelect(r) {
  if (!r.ranks || r.ranks.ranks < 2) return null;
  const select = el("select", {}, el("option", {value: "mean"}, "mean of all ranks"), ...Array.from({length: r.ranks.ranks}, (_, i) => el("option", {value: i}, `rank ${i}`)));
  select.value = chosen.part;
  if (select.selectedIndex < 0) select.value = "mean";
  select.addEventListener("change", () => choose("part", select.value));
  return el("div", {class: "bar"}, el("label", {}, "Parts of", select));
}

/* What belongs to one run is built again when another one is chosen. */
function perRun(id, name, build, keys) {
  const body = el("div", {class: "charts"}), s = section(id, name, runSelect() || "", body);
  const draw = () => {
    const cards = build(runs[Math.min(chosen.run, runs.length - 1)]);
    body.replaceChildren(...cards.map((c) => c[0]));
    cards.forEach((c) => c[1]());
  };
  onChoice(["run", ...(keys || [])], draw);
  return [s, draw];
}
/* Files of a run that are not as the engine writes them spoil their own part of the page and no other. */
function still(name, build) {
  let card;
  try { card = build(); } catch (e) { card = el("div", {class: "card wide"}, el("h3", {}, name), el("p", {class: "quiet"}, "The file for this part cannot be shown.")); }
  return card ? [[card, () => {}]] : [];
}

function timeCards(r) {
  const cards = [stepTime(r)], select = partSelect(r);
  if (select) cards[0][0].querySelector("h3").after(select);
  if (r.ranks && r.ranks.ranks > 1) cards.push(heatMap(r), ...still("Ranks", () => rankTable(r)));
  else if ((r.start || {}).world_size > 1)
    cards.push(...still("Ranks", () => el("div", {class: "card wide"}, el("h3", {}, "Ranks over time"), el("p", {class: "quiet"}, "This run has no ranks.jsonl, so that only the times of rank 0 are known. ", el("code", {}, "[output] ranks = yes"), " writes one."))));
  return cards.concat([timeline(r)], still("Kernels", () => kernels(r)));
}

function themeSelect() {
  const select = el("select", {"aria-label": "Colours of the page"}, ...["system", "light", "dark"].map((t) => el("option", {value: t}, `${t} colours`)));
  const set = () => (chosen.theme === "system" ? document.documentElement.removeAttribute("data-theme") : document.documentElement.setAttribute("data-theme", chosen.theme));
  select.value = chosen.theme;
  select.addEventListener("change", () => { chosen.theme = select.value; set(); choose("theme", select.value); });
  set();
  return select;
}

/* A page of --follow loads itself again, unless the reader has stopped that. */
function follow() {
  if (!data.follow) return null;
  const box = el("input", {type: "checkbox"});
  box.checked = !chosen.paused;
  box.addEventListener("change", () => choose("paused", !box.checked));
  setInterval(() => !chosen.paused && !document.hidden && location.reload(), 5000);
  return el("label", {class: "screen"}, box, " Load again every 5 s");
}

(() => {
  const heading = runs.length === 1 ? runs[0].name : `${runs.length} runs`, main = document.getElementById("main");
  document.title = `${heading} – ddpengine report`;
  document.getElementById("title").textContent = heading;
  document.getElementById("subtitle").append(`Report of ddpengine ${data.version}, written ${when(data.written)}${runs.some((r) => r.state.going_on) ? ", while it goes on" : ""}. `, follow() || "");
  document.getElementById("theme").append(themeSelect());
  const curves = curvesSection(), time = perRun("time", "Where the time goes", timeCards, ["part"]);
  const model = perRun("model", "Model and machine", (r) => [...still("Parameters", () => parametersCard(r)), ...still("Events", () => eventsCard(r)), ...still("The machine", () => machineCard(r))]);
  main.append(runsSection(), curves[0], time[0], settingsSection(), model[0],
    el("footer", {}, "All curves have tables below them. With the keyboard: Tab to a curve, then the arrow keys, Page Up, Page Down, Home and End move its cursor."));
  for (const s of [curves, time, model]) s[1]();
})();
