// The page of a sweep: what a reader does with it, and, of a live one, what the server sends.
// Everything that a reader has chosen (order, filter, what is open) is kept here and applied to
// whatever HTML comes, so that an update changes nothing but what it says.

const root = document.documentElement;
const byId = (id) => document.getElementById(id);
const live = root.dataset.events !== undefined;

// Light and dark -------------------------------------------------------------------------------

const THEMES = ["system", "light", "dark"];
const stored = {  // a page that was opened as a file may have no storage
  get(name) { try { return localStorage.getItem(name); } catch { return null; } },
  set(name, value) { try { localStorage.setItem(name, value); } catch { /* it lasts as long as the page */ } },
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

// Tables: order, filter, how many rows ---------------------------------------------------------

const MISSING = "–";
const chosen = new Map();  // by table: {column, direction, filter, all}
const choiceOf = (id) => {
  if (!chosen.has(id)) chosen.set(id, {column: null, direction: null, filter: "", all: false});
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

function arrange(table) {
  const choice = choiceOf(table.id), body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const names = heads.map((head) => textOf(head).toLowerCase());
  const rows = [...body.rows].map((row, place) => {
    const raw = [...row.cells].map(rawOf);
    row.dataset.place ??= String(place);
    return {row, place: Number(row.dataset.place), raw};
  });
  const column = choice.column === null ? -1 : heads.findIndex((head) => textOf(head) === choice.column);
  heads.forEach((head, n) => head.setAttribute("aria-sort", n === column ? choice.direction : "none"));
  if (column >= 0) {
    const known = rows.filter(({raw}) => raw[column] !== MISSING);
    const numbers = known.every(({raw}) => isNumber(raw[column]));
    const sign = choice.direction === "descending" ? -1 : 1;
    const compare = numbers ? (a, b) => Number(a) - Number(b) : (a, b) => a.localeCompare(b, "en", {numeric: true});
    rows.sort((one, other) => {
      const [a, b] = [one.raw[column], other.raw[column]];
      if ((a === MISSING) !== (b === MISSING)) return a === MISSING ? 1 : -1;  // what is missing is last
      return (a === MISSING ? 0 : sign * compare(a, b)) || one.place - other.place;
    });
  } else rows.sort((one, other) => one.place - other.place);
  const fits = matcher(choice.filter, names), most = choice.all ? Infinity : Number(table.dataset.most);
  let matching = 0;
  for (const {row, raw} of rows) {
    const matches = fits([...row.cells].map((cell) => textOf(cell).toLowerCase()), raw.map((text) => text.toLowerCase()));
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
    table.closest(".scroll").classList.toggle("tall", seen.all && seen.matching > seen.most);
  }
  for (const wide of part.querySelectorAll(".wide")) wide.style.minWidth = `${wide.dataset.least}px`;
}

// CSV: of the rows that match, in the order in which they are shown. A text that a spreadsheet would
// take for a formula gets an apostrophe.
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

function save(text, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], {type: "text/csv"}));
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
  } catch {  // not over plain HTTP from elsewhere, and not everywhere from a file
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
  } else if (button.dataset.export) save(csvOf(byId(button.dataset.export)), button.dataset.file);
  else if (button.dataset.copy !== undefined)
    copy(button.dataset.copy || button.closest(".code").querySelector("pre").textContent);
  else if (button.dataset.opens) location.hash = `trial=${encodeURIComponent(button.dataset.opens)}`;
  else if (button.dataset.closes !== undefined) byId("panel").close();
});
document.addEventListener("input", (event) => {
  const tools = event.target.closest(".tools");
  if (!tools) return;
  choiceOf(tools.dataset.for).filter = event.target.value;
  again(tools.dataset.for);
});

// A trial in full ------------------------------------------------------------------------------

const panel = byId("panel");
const opened = () => {
  try { return decodeURIComponent(location.hash.match(/^#trial=(.+)$/)?.[1] ?? ""); } catch { return ""; }
};
async function htmlOf(trial) {
  if (!live) return [...document.querySelectorAll("template[data-panel]")].find((one) => one.dataset.panel === trial)?.innerHTML;
  const answer = await fetch(`${root.dataset.trials}?id=${encodeURIComponent(trial)}`);
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

const charts = new Map();  // by name: {spec, view, shape, next}
const specs = new Map([...document.querySelectorAll("script[data-chart]")].map((source) =>
  [source.dataset.chart, JSON.parse(source.textContent)]));
const shapeOf = ({datasets, ...shape}) => JSON.stringify([shape, Object.keys(datasets ?? {})]);

async function draw(name) {
  const spec = specs.get(name), place = byId(`chart-${name}`), known = charts.get(name);
  if (!spec || !place) return;
  const shape = shapeOf(spec);
  if (known?.shape === shape && place.contains(known.view.container())) {
    for (const [data, rows] of Object.entries(spec.datasets ?? {})) known.view.data(data, rows);
    await known.view.runAsync();
    return;
  }
  place.style.minHeight = `${place.clientHeight}px`;  // so that nothing below it moves
  known?.view.finalize();
  // Expressions are interpreted, not compiled: the page needs no 'unsafe-eval'.
  const options = {actions: false, renderer: "svg", ast: true, defaultStyle: false, tooltip: {disableDefaultStyle: true}};
  const {view} = await window.vegaEmbed(place, structuredClone(spec), options);
  place.style.minHeight = "";
  charts.set(name, {view, shape});
}
const drawing = (names) => Promise.all(names.map(draw));
// The browser too spends no more than a part of its time on drawing.
let drawn = 0;
const due = new Set();
let busy = false;
async function drawDue() {
  if (busy || !due.size) return;
  busy = true;
  const names = [...due], began = performance.now();
  due.clear();
  try { await drawing(names); } catch (error) { root.dataset.failed = String(error); }
  drawn = performance.now() - began;
  setTimeout(() => { busy = false; drawDue(); }, 4 * drawn);
}

// Updates --------------------------------------------------------------------------------------

// Changes a tree into another one, and as little of it as it takes: what is focused, scrolled or
// drawn stays. Children are told apart by their keys, where they have any.
const keyOf = (node) => node.id || node.dataset?.key || node.dataset?.trial || node.dataset?.part || null;
function morph(from, to) {
  for (const {name, value} of [...to.attributes]) if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  for (const {name} of [...from.attributes]) if (!to.hasAttribute(name)) from.removeAttribute(name);
  if (from.classList.contains("chart")) return;
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
  if (order.some((part, n) => main.children[n] !== part)) main.append(...order);
  fetchCharts(update.charts);
  if (panel.open) showTrial();
  root.dataset.version = update.version;
}
// Fetches what has changed of the charts that have a place, and what was never fetched.
async function fetchCharts(changed) {
  const names = [...document.querySelectorAll("#main .chart")].map((place) => place.id.replace("chart-", ""));
  for (const name of names) {
    if (specs.has(name) && !changed.includes(name)) {
      if (!byId(`chart-${name}`).querySelector("svg")) due.add(name);
      continue;
    }
    const where = `${root.dataset.trials.replace(/trial$/, "chart")}?id=${encodeURIComponent(name)}`;
    const answer = await fetch(where).catch(() => null);  // the server may be gone; then all comes again
    if (!answer?.ok) continue;  // or the chart is drawn next
    specs.set(name, await answer.json());
    due.add(name);
  }
  drawDue();
}

let source = null, retry;
function listen() {
  clearTimeout(retry);
  source?.close();
  source = new EventSource(`${root.dataset.events}?since=${encodeURIComponent(root.dataset.version)}`);
  source.addEventListener("open", () => tell("live"));
  source.addEventListener("update", (event) => { take(JSON.parse(event.data)); tell("live"); });
  source.addEventListener("trouble", (event) => tell(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    tell("The server does not answer; trying again.");
    source.close();
    retry = setTimeout(listen, 1000);
  });
}
function tell(text) {
  const place = byId("connection");
  place.textContent = text;
  place.toggleAttribute("data-lost", text !== "live");
}

// At the beginning -----------------------------------------------------------------------------

arrangeIn(document.body);
window.drawing = drawing([...specs.keys()]).then(() => { root.dataset.drawn = specs.size; })
  .catch((error) => { root.dataset.failed = String(error); });
if (opened()) showTrial();
if (live) {
  fetchCharts([]);
  // A page that nobody sees asks for nothing.
  const visible = () => {
    if (!document.hidden) return listen();
    clearTimeout(retry);
    source?.close();
  };
  document.addEventListener("visibilitychange", visible);
  visible();
}
