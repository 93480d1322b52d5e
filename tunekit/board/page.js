// The page of a sweep: handles the reader's actions and, on a live page, the server's updates.
// The reader's choices (order, filter, open parts) are kept here and applied to all HTML that
// arrives, so that an update changes the content only.

const root = document.documentElement;
const byId = (id) => document.getElementById(id);
const live = root.dataset.news !== undefined;
function asking(path, values) {
  const address = new URL(path, location);
  for (const [name, value] of Object.entries(values)) address.searchParams.set(name, value);
  return address;
}

// Light and dark -------------------------------------------------------------------------------

const THEMES = ["system", "light", "dark"];
const stored = {  // a page that was opened as a file may have no storage
  get(name) { try { return localStorage.getItem(name); } catch { return null; } },
  set(name, value) { try { localStorage.setItem(name, value); } catch { /* it is lost with the page */ } },
};
function show(theme) {
  if (theme === "system") delete root.dataset.theme; else root.dataset.theme = theme;
  byId("theme").querySelector("span").textContent = theme;
}
let theme = THEMES.includes(stored.get("tunekit-theme")) ? stored.get("tunekit-theme") : "system";
show(theme);
byId("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  stored.set("tunekit-theme", theme);
  show(theme);
});

// Tables: order, filter, number of rows --------------------------------------------------------

const MISSING = "–", COLLATOR = new Intl.Collator("en", {numeric: true});
let marked = "", pinned = "";  // the trial highlighted now, and the one when nothing is pointed at
const signals = new Map();  // by chart: the reader's choices
const chosen = new Map();  // by table: {column, direction, filter, all}
const choiceOf = (id) => {
  if (!chosen.has(id)) chosen.set(id, {column: null, direction: null, filter: "", all: false, scrolled: false});
  return chosen.get(id);
};
const textOf = (cell) => cell.textContent.trim();
const rawOf = (cell) => cell.dataset.value ?? textOf(cell);
const isNumber = (text) => text !== "" && !Number.isNaN(Number(text));

// A term is a word that occurs anywhere in the row, or a comparison: lr<0.01, status=running.
function matcher(filter, names) {
  const terms = filter.toLowerCase().split(/\s+/).filter(Boolean).map((term) => {
    const [, name, sign, wanted] = term.match(/^(.+?)(<=|>=|<|>|=)(.+)$/) ?? [];
    const columns = name === undefined ? []
      : [...names.keys()].filter((n) => [names[n], names[n].replaceAll(" ", "")].includes(name));
    if (!columns.length) return (texts) => texts.some((text) => text.includes(term));
    const fits = (text) => {
      if (text === MISSING) return false;
      if (!isNumber(text) || !isNumber(wanted)) return sign === "=" && text === wanted;
      const [a, b] = [Number(text), Number(wanted)];
      return {"<": a < b, ">": a > b, "<=": a <= b, ">=": a >= b, "=": a === b}[sign];
    };
    return (texts, raw) => columns.some((column) => fits(raw[column]));
  });
  return (texts, raw) => terms.every((term) => term(texts, raw));
}

// The texts of a row's cells, cached until the row changes.
const words = new WeakMap();
function wordsOf(row) {
  if (!words.has(row)) {
    const raw = [...row.cells].map(rawOf);
    const texts = [...row.cells].map((cell) => textOf(cell).toLowerCase());
    words.set(row, {raw, texts, lower: raw.map((text) => text.toLowerCase())});
  }
  return words.get(row);
}

function arrange(table) {
  const choice = choiceOf(table.id), body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const names = heads.map((head) => textOf(head).toLowerCase());
  const rows = [...body.rows].map((row, place) => {
    row.dataset.place ??= String(place);
    return {row, place: Number(row.dataset.place), ...wordsOf(row)};
  });
  const column = choice.column === null ? -1 : heads.findIndex((head) => textOf(head) === choice.column);
  heads.forEach((head, n) => head.setAttribute("aria-sort", n === column ? choice.direction : "none"));
  if (column >= 0) {
    const known = rows.filter(({raw}) => raw[column] !== MISSING);
    const numbers = known.every(({raw}) => isNumber(raw[column]));
    const sign = choice.direction === "descending" ? -1 : 1;
    const compare = numbers ? (a, b) => Number(a) - Number(b) : (a, b) => COLLATOR.compare(a, b);
    rows.sort((one, other) => {
      const [a, b] = [one.raw[column], other.raw[column]];
      if ((a === MISSING) !== (b === MISSING)) return a === MISSING ? 1 : -1;  // missing values come last
      return (a === MISSING ? 0 : sign * compare(a, b)) || one.place - other.place;
    });
  } else rows.sort((one, other) => one.place - other.place);
  const fits = matcher(choice.filter, names), most = choice.all ? Infinity : Number(table.dataset.most);
  let matching = 0;
  for (const {row, texts, lower} of rows) {
    const matches = fits(texts, lower);
    matching += matches;
    row.toggleAttribute("data-out", !matches);
    row.hidden = !matches || matching > most;
  }
  if (rows.some(({row}, n) => body.rows[n] !== row)) body.append(...rows.map(({row}) => row));
  return {matching, rows: rows.length, most: Number(table.dataset.most), all: choice.all};
}

function arrangeIn(part) {
  for (const table of part.querySelectorAll("table.sortable")) {
    const seen = arrange(table), id = table.id;
    const find = (what) => part.querySelector(what);
    const count = find(`#count-${id}`), more = find(`[data-more="${id}"]`);
    if (count) count.textContent = seen.matching < seen.rows ? `${seen.matching} of ${seen.rows}` : `${seen.rows} in all`;
    if (more) {
      more.hidden = seen.matching <= seen.most;
      more.textContent = seen.all ? `Show the first ${seen.most}` : `Show all ${seen.matching}`;
      more.setAttribute("aria-expanded", String(seen.all));
    }
    const box = table.closest(".scroll").classList;
    box.toggle("tall", seen.all && seen.matching > seen.most);
    box.toggle("scrolled", choiceOf(id).scrolled);
  }
  for (const row of part.querySelectorAll("#trials tr[data-trial]")) row.toggleAttribute("data-marked", row.dataset.trial === marked);
  for (const button of part.querySelectorAll("[data-reset]")) button.disabled = !isZoomed(button.dataset.reset);
}

// The first columns stay in view once a table is scrolled, but not before, because hundreds of sticky
// cells make each frame take ten times as long.
document.addEventListener("scroll", ({target}) => {
  const table = target.querySelector?.(":scope > table.sortable");
  if (!table) return;
  choiceOf(table.id).scrolled = target.scrollLeft > 0;
  target.classList.toggle("scrolled", target.scrollLeft > 0);
}, true);

// CSV of the rows that match, in the order shown. A text that a spreadsheet would read as a formula
// gets an apostrophe.
function csvOf(table) {
  const field = (text) => {
    const safe = /^[=+\-@\t\r]/.test(text) && !isNumber(text) ? `'${text}` : text;
    return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const rows = [...table.tBodies[0].rows].filter((row) => !row.hasAttribute("data-out"));
  const cell = (one) => one.querySelector("[data-opens]")?.dataset.opens ?? (textOf(one) === MISSING ? "" : rawOf(one));
  const lines = [[...table.tHead.rows[0].cells].map(textOf), ...rows.map((row) => [...row.cells].map(cell))];
  return lines.map((line) => line.map(field).join(",") + "\r\n").join("");
}

function save(data, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(data);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// Clicks and keys ------------------------------------------------------------------------------

let silence;
function say(text) {
  byId("said").textContent = text;
  clearTimeout(silence);
  silence = setTimeout(() => { byId("said").textContent = ""; }, 1500);
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // unavailable over plain HTTP from another machine, and in some browsers from a file
    const area = document.createElement("textarea");
    area.value = text;
    (byId("panel").open ? byId("panel") : document.body).append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say("Copied.");
}

const again = (id) => arrangeIn(byId(id).closest("[data-part]") ?? document.body);

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  const sorted = button.closest("table.sortable thead");
  if (sorted) {
    const table = sorted.closest("table"), choice = choiceOf(table.id), name = textOf(button);
    const order = choice.column === name ? {ascending: "descending", descending: null}[choice.direction] : "ascending";
    [choice.column, choice.direction] = order === null ? [null, null] : [name, order];
    again(table.id);
  } else if (button.dataset.more) {
    const choice = choiceOf(button.dataset.more);
    choice.all = !choice.all;
    again(button.dataset.more);
  } else if (button.dataset.export) save(new Blob([csvOf(byId(button.dataset.export))], {type: "text/csv"}), button.dataset.file);
  else if (button.dataset.png) savePng(button.dataset.png, button.dataset.file);
  else if (button.dataset.reset) zoom(button.dataset.reset, null, null);
  else if (button.dataset.copy !== undefined)
    copy(button.dataset.copy || button.closest(".code").querySelector("pre").textContent);
  else if (button.dataset.opens) location.hash = `trial=${encodeURIComponent(button.dataset.opens)}`;
  else if (button.dataset.closes !== undefined) byId("panel").close();
});
document.addEventListener("input", (event) => {
  const tools = event.target.closest(".tools[data-for]");
  if (!tools) return;
  choiceOf(tools.dataset.for).filter = event.target.value;
  again(tools.dataset.for);
});

// The details of a trial -----------------------------------------------------------------------

const panel = byId("panel");
const opened = () => {
  try { return decodeURIComponent(location.hash.match(/^#trial=(.+)$/)?.[1] ?? ""); } catch { return ""; }
};
let inFull;  // by trial, if the page is a file
async function htmlOf(trial) {
  if (!live) return (inFull ??= JSON.parse(byId("panels")?.textContent ?? "{}"))[trial];
  const answer = await fetch(asking(root.dataset.trials, {id: trial}));
  return answer.ok ? answer.text() : undefined;
}
async function showTrial() {
  const trial = opened();
  if (!trial) return panel.close();
  const html = await htmlOf(trial).catch(() => undefined);
  if (trial !== opened() || html === undefined) return;
  patch(panel, html);
  if (!panel.open) panel.showModal();
}
panel.addEventListener("close", () => { if (opened()) history.replaceState(null, "", location.pathname + location.search); });
panel.addEventListener("click", (event) => { if (event.target === panel) panel.close(); });
addEventListener("hashchange", showTrial);

// Charts ---------------------------------------------------------------------------------------

const charts = new Map();  // by name: {view, shape}
const sources = new Map([...document.querySelectorAll("script[data-chart]")].map((one) => [one.dataset.chart, one]));
const specs = {  // read when they are first needed
  known: new Map(),
  has(name) { return this.known.has(name) || sources.has(name); },
  get(name) {
    if (!this.known.has(name) && sources.has(name)) this.known.set(name, JSON.parse(sources.get(name).textContent));
    return this.known.get(name);
  },
  set(name, spec) { this.known.set(name, spec); },
};
const shapeOf = ({datasets, ...shape}) => JSON.stringify([shape, Object.keys(datasets ?? {})]);
const signalsOf = (name) => {
  if (!signals.has(name)) signals.set(name, {});
  return signals.get(name);
};

async function draw(name) {
  const spec = specs.get(name), place = byId(`chart-${name}`), known = charts.get(name);
  if (!spec || !place) return;
  if (isCurves(name)) curves.delete(name);
  const shape = shapeOf(spec);
  if (known?.shape === shape && place.contains(known.view.container())) {
    for (const [data, rows] of Object.entries(spec.datasets ?? {})) known.view.data(data, rows);
    await known.view.runAsync();
    if (isCurves(name)) fit(name);
    return;
  }
  place.style.minHeight = `${place.clientHeight}px`;  // keeps everything below it in place
  known?.view.finalize();
  // Expressions are interpreted, not compiled: the page needs no 'unsafe-eval'.
  const options = {actions: false, renderer: "svg", ast: true, defaultStyle: false, tooltip: {disableDefaultStyle: true}};
  const own = structuredClone(spec);
  for (const param of own.params ?? []) param.value = signalsOf(name)[param.name] ?? param.value;
  const {view} = await window.vegaEmbed(place, own, options);
  place.style.minHeight = "";
  place.querySelector("svg.marks").setAttribute("aria-hidden", "true");  // its parent has a label
  charts.set(name, {view, shape});
  if (!isCurves(name)) return;
  place.dataset.curves = "";
  view.addResizeListener(() => setTimeout(fit, 0, name));
  fit(name);  // makes the first mouse move as fast as later ones
}

async function signal(name, values) {
  Object.assign(signalsOf(name), values);
  const view = charts.get(name)?.view;
  for (const [key, value] of Object.entries(values)) view?.signal(key, value);
  await view?.runAsync();
  fit(name);
}

async function savePng(name, file) {
  await draw(name);
  const canvas = await charts.get(name).view.toCanvas(2);
  save(await new Promise((done) => canvas.toBlob(done, "image/png")), file);
}

// A chart is drawn when it is near the visible part: for a large sweep, all charts take seconds.
const NEAR = 300;
const isNear = (name) => {
  const box = byId(`chart-${name}`)?.getBoundingClientRect();
  return box !== undefined && box.bottom > -NEAR && box.top < innerHeight + NEAR;
};
const watching = new IntersectionObserver((entries) => {
  if (!entries.some((entry) => entry.isIntersecting)) return;
  for (const name of stale) outline(name);
  drawDue();
}, {rootMargin: `${NEAR}px`});
const placed = () => [...document.querySelectorAll("#main .chart")].map((place) => place.id.replace("chart-", ""));
// Drawing is limited to a share of the browser's time.
const due = new Set();
let busy = null;
async function drawDue() {
  if (busy) { await busy; return; }
  const names = [...due].filter(isNear), began = performance.now();
  if (!names.length) return;
  let done;
  busy = new Promise((resolve) => { done = resolve; });
  for (const name of names) {
    due.delete(name);
    try { await draw(name); } catch (error) { root.dataset.failed = String(error); }
    // Between two charts, the reader's actions come first.
    await new Promise((next) => setTimeout(next, 0));
  }
  const rest = live ? 4 * (performance.now() - began) : 0;
  done();
  setTimeout(() => { busy = null; drawDue(); }, rest);
}
window.drawAll = async () => {
  for (const name of placed()) if (due.delete(name)) await draw(name);
};
addEventListener("beforeprint", () => { window.drawAll(); });

// Curves: zoom, and one trial highlighted ------------------------------------------------------

const isCurves = (name) => specs.get(name)?.usermeta?.curves !== undefined;
const idOf = (point) => point.line.slice(0, point.line.lastIndexOf(" "));
const curves = new Map();  // by chart: the points of each trial
function curvesOf(name) {
  if (!curves.has(name)) {
    const found = new Map();
    specs.get(name).datasets.points.forEach((point, n) => {
      const id = idOf(point);
      if (!found.has(id)) found.set(id, []);
      found.get(id).push(n);
    });
    curves.set(name, found);
  }
  return curves.get(name);
}

function mark(trial) {
  if (trial === marked) return;
  marked = trial;
  for (const row of document.querySelectorAll("#trials tr[data-marked]")) row.removeAttribute("data-marked");
  const row = trial && [...document.querySelectorAll("#trials tr[data-trial]")].find((one) => one.dataset.trial === trial);
  if (row) row.setAttribute("data-marked", "");
  for (const name of charts.keys()) if (isCurves(name)) outline(name);
}
// Draws the highlighted trial over a chart, because Vega would redraw the whole chart. The layer stays
// when nothing is highlighted, because adding or removing one makes the browser sort all of them.
const SVG = "http://www.w3.org/2000/svg";
function overlay(name) {
  const box = document.createElementNS(SVG, "svg");
  box.setAttribute("class", "outline");
  box.setAttribute("aria-hidden", "true");
  for (const kind of ["fade", "line", "dots"]) {
    const one = document.createElementNS(SVG, kind === "fade" ? "rect" : "path");
    one.setAttribute("class", kind);
    box.append(one);
  }
  byId(`chart-${name}`).append(box);
  return box;
}
const stale = new Set();  // charts far from the visible part, which may highlight another trial
function outline(name) {
  if (!isNear(name)) { stale.add(name); return; }
  stale.delete(name);
  const box = byId(`chart-${name}`)?.querySelector(".outline");
  if (!box) return;
  const lines = new Map(), {points, x, y} = placesOf(name);
  for (const n of curvesOf(name).get(marked) ?? []) {
    if (!lines.has(points[n].line)) lines.set(points[n].line, []);
    lines.get(points[n].line).push(`${x[n].toFixed(1)},${y[n].toFixed(1)}`);
  }
  const every = [...lines.values()];
  box.querySelector(".line").setAttribute("d", every.map((one) => `M${one.join("L")}`).join(""));
  box.querySelector(".dots").setAttribute("d", every.flat().map((one) => `M${one}h0`).join(""));
  box.toggleAttribute("data-shown", every.length > 0);
}
// Aligns the layer with the area inside the chart's axes, which move with their labels.
function fit(name) {
  const place = byId(`chart-${name}`), {view} = charts.get(name) ?? {};
  if (!place || !view || !place.contains(view.container())) return;
  const box = place.querySelector(".outline") ?? overlay(name), at = within(name, {clientX: 0, clientY: 0});
  const size = {width: view.width(), height: view.height()};
  for (const [side, pixels] of Object.entries({left: at.left, top: at.top, ...size})) box.style[side] = `${pixels}px`;
  for (const [side, pixels] of Object.entries(size)) box.querySelector(".fade").setAttribute(side, pixels);
  outline(name);
}
function pin(trial) {
  pinned = trial;
  mark(trial);
}

// The position of the mouse relative to a chart's axes, in pixels, and whether it is inside them.
function within(name, event) {
  const {view} = charts.get(name), place = byId(`chart-${name}`), box = place.querySelector("svg.marks").getBoundingClientRect();
  const [left, top] = view.origin(), [x, y] = [event.clientX - box.left - left, event.clientY - box.top - top];
  return {x, y, left: left + box.left - place.getBoundingClientRect().left, top: top + box.top - place.getBoundingClientRect().top,
    inside: x >= 0 && y >= 0 && x <= view.width() && y <= view.height()};
}
function nearest(name, at) {
  let best = -1, least = 40 ** 2;
  const {points, x, y} = placesOf(name);
  for (let n = 0; n < points.length; n++) {
    const distance = (x[n] - at.x) ** 2 + (y[n] - at.y) ** 2;
    if (distance < least) { best = n; least = distance; }
  }
  return best < 0 ? null : points[best];
}
// The positions of a chart's points, in pixels, until it is zoomed, resized or drawn again.
const places = new Map();
function placesOf(name) {
  const {view} = charts.get(name), [x, y] = [view.scale("x"), view.scale("y")], {points} = specs.get(name).datasets;
  const of = JSON.stringify([x.domain(), x.range(), y.domain(), y.range()]);
  if (places.get(name)?.of !== of || places.get(name).points !== points)
    places.set(name, {of, points, x: points.map((one) => x(one.iteration)), y: points.map((one) => y(one.value))});
  return places.get(name);
}
const isZoomed = (name) => ["zoom_x", "zoom_y"].some((one) => signalsOf(name)[one]);
function zoom(name, x, y) {
  window.zooming = signal(name, {zoom_x: x, zoom_y: y});
  for (const button of document.querySelectorAll(`[data-reset="${name}"]`)) button.disabled = !isZoomed(name);
}

let drag = null;
const chartAt = (event) => event.target.closest?.(".chart[data-curves]")?.id.replace("chart-", "");
document.addEventListener("pointerdown", (event) => {
  const name = chartAt(event);
  if (!name || event.button !== 0) return;
  if (!within(name, event).inside || event.pointerType === "touch") return;
  drag = {name, from: within(name, event), box: document.createElement("div")};
  drag.box.className = "brush";
  event.preventDefault();
});
document.addEventListener("pointermove", (event) => {
  if (drag) {
    const {view} = charts.get(drag.name), at = within(drag.name, event), clamp = (value, most) => Math.max(0, Math.min(most, value));
    drag.to = {x: clamp(at.x, view.width()), y: clamp(at.y, view.height())};
    if (!drag.box.isConnected && Math.hypot(drag.to.x - drag.from.x, drag.to.y - drag.from.y) > 5) byId(`chart-${drag.name}`).append(drag.box);
    Object.assign(drag.box.style, {
      left: `${at.left + Math.min(drag.from.x, drag.to.x)}px`, top: `${at.top + Math.min(drag.from.y, drag.to.y)}px`,
      width: `${Math.abs(drag.to.x - drag.from.x)}px`, height: `${Math.abs(drag.to.y - drag.from.y)}px`,
    });
    return;
  }
  const name = chartAt(event);
  if (name) point(name, event);
});
function point(name, event) {
  const at = within(name, event), found = at.inside ? nearest(name, at) : null, {view} = charts.get(name);
  const metric = specs.get(name).usermeta.curves;
  const told = found && {trial: found.trial, generation: found.generation, iteration: found.iteration, [metric]: Number(found.value.toPrecision(5))};
  view.tooltip().call(view, view, event, {}, told);
  mark(found ? idOf(found) : pinned);
}
document.addEventListener("pointerup", (event) => {
  if (!drag) return;
  const {name, from, to, box} = drag, {view} = charts.get(name);
  drag = null;
  if (box.isConnected) {
    box.remove();
    const sorted = (values) => values.sort((a, b) => a - b);
    const x = sorted([from.x, to.x].map((one) => view.scale("x").invert(one)));
    const y = sorted([from.y, to.y].map((one) => view.scale("y").invert(one)));
    if (x[0] < x[1] && y[0] < y[1]) zoom(name, x, y);
    return;
  }
  const found = nearest(name, within(name, event));
  if (found) pin(pinned === idOf(found) ? "" : idOf(found));
});
document.addEventListener("pointerout", (event) => {
  const name = chartAt(event);
  if (!name || byId(`chart-${name}`).contains(event.relatedTarget)) return;
  charts.get(name).view.tooltip().call(null, null, event, {}, null);
  mark(pinned);
});
const rowAt = (event) => event.target.closest?.("#trials tr[data-trial]")?.dataset.trial;
for (const [begins, ends] of [["pointerover", "pointerout"], ["focusin", "focusout"]]) {
  document.addEventListener(begins, (event) => { if (rowAt(event)) mark(rowAt(event)); });
  document.addEventListener(ends, (event) => {
    if (rowAt(event) && !event.relatedTarget?.closest?.("#trials tr[data-trial], .chart[data-curves]")) mark(pinned);
  });
}
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || panel.open) return;
  for (const name of charts.keys()) if (isCurves(name) && isZoomed(name)) zoom(name, null, null);
  pin("");
});

// Updates --------------------------------------------------------------------------------------

// Changes a tree into another one with as few changes as possible, so that focus, scrolling and
// drawings stay. Children with keys are matched by them.
const keyOf = (node) => node.id || node.dataset?.key || node.dataset?.trial || node.dataset?.part || null;
function morph(from, to) {
  for (const {name, value} of [...to.attributes]) if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  for (const {name} of [...from.attributes]) if (!to.hasAttribute(name)) from.removeAttribute(name);
  if (from.classList.contains("chart")) return;
  if (from.nodeName === "TR") words.delete(from);
  morphChildren(from, to);
}
function morphChildren(from, to) {
  const keyed = new Map([...from.children].filter(keyOf).map((child) => [keyOf(child), child]));
  let here = from.firstChild;
  for (const next of [...to.childNodes]) {
    const key = keyOf(next);
    let same = key ? keyed.get(key) : here;
    if (same && (same.nodeType !== next.nodeType || same.nodeName !== next.nodeName || (!key && keyOf(same)))) same = null;
    if (!same) { from.insertBefore(next, here); continue; }
    if (same === here) here = here.nextSibling; else from.insertBefore(same, here);
    if (same.nodeType === Node.ELEMENT_NODE) morph(same, next);
    else if (same.nodeValue !== next.nodeValue) same.nodeValue = next.nodeValue;
  }
  while (here) { const next = here.nextSibling; here.remove(); here = next; }
}

function patch(part, html) {
  const incoming = new DOMParser().parseFromString(`<div>${html}</div>`, "text/html").body.firstChild;
  const open = new Map([...part.querySelectorAll("details[data-key]")].map((one) => [one.dataset.key, one.open]));
  for (const one of incoming.querySelectorAll("details[data-key]"))
    if (open.has(one.dataset.key)) one.open = open.get(one.dataset.key);
  arrangeIn(incoming);
  const focused = document.activeElement;
  morphChildren(part, incoming);
  if (focused !== document.activeElement && focused?.isConnected) focused.focus({preventScroll: true});
}

function take(update) {
  root.dataset.version = update.version;
  if (!Object.keys(update.parts).length && !update.charts.length) return;
  const main = byId("main");
  for (const [id, html] of Object.entries(update.parts)) {
    let part = main.querySelector(`[data-part="${id}"]`);
    if (!part) {
      part = document.createElement("div");
      part.dataset.part = id;
      main.append(part);
    }
    patch(part, html);
  }
  const order = update.order.map((id) => main.querySelector(`[data-part="${id}"]`)).filter(Boolean);
  for (const part of [...main.children]) if (!order.includes(part)) part.remove();
  // A part that is moved loses its focus and scroll position, so only new ones are.
  order.forEach((part, n) => { if (main.children[n] !== part) main.insertBefore(part, main.children[n]); });
  fetchCharts(update.charts);
  if (panel.open) showTrial();
}
// Fetches the charts on the page that have changed or were never fetched.
async function fetchCharts(changed) {
  for (const place of document.querySelectorAll("#main .chart")) watching.observe(place);
  for (const name of placed()) {
    if (specs.has(name) && !changed.includes(name)) {
      if (!byId(`chart-${name}`).querySelector("svg")) due.add(name);
      continue;
    }
    const answer = await fetch(asking(root.dataset.charts, {id: name})).catch(() => null);  // the server may be gone; a new one sends all of them
    if (!answer?.ok) continue;  // the server may not have drawn it yet
    specs.set(name, await answer.json());
    due.add(name);
  }
  drawDue();
}

// Requests updates repeatedly, unless the page is hidden.
let asked = false, next;
async function follow() {
  clearTimeout(next);
  if (asked || document.hidden) return;
  asked = true;
  let wait = 500;
  try {
    const answer = await fetch(asking(root.dataset.news, {since: root.dataset.version}));
    if (answer.ok) {
      const news = await answer.json();
      take(news);
      tell(news.trouble || "live");
      if (news.more) wait = 0;
    } else tell(answer.status === 401 ? "The token has changed. Open the address that tunekit serve prints now." : "The server failed to send updates; see its log.");
  } catch {
    tell("The server does not respond; trying again.");
  }
  asked = false;
  next = setTimeout(follow, wait);
}
function tell(text) {
  const place = byId("connection");
  place.textContent = text;
  place.toggleAttribute("data-lost", text !== "live");
}

// Start ----------------------------------------------------------------------------------------

arrangeIn(document.body);
for (const place of document.querySelectorAll("#main .chart")) watching.observe(place);
for (const name of placed()) if (specs.has(name)) due.add(name);
window.drawing = drawDue();
if (opened()) showTrial();
if (live) {
  fetchCharts([]);
  document.addEventListener("visibilitychange", follow);
  follow();
}
