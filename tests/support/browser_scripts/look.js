// What a reader would stumble over, gathered by the browser that has laid the page out.
(async () => {
await window.drawAll();
const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
const fits = () => [...document.querySelectorAll(".chart")].every((chart) =>
  Math.abs(chart.querySelector("svg.marks").getBoundingClientRect().width - chart.clientWidth) < 2);
for (let n = 0; n < 100 && !fits(); n++) await frame();
await frame();
const found = {trouble: []};
const failed = document.documentElement.dataset.failed;
if (failed) found.trouble.push(`a chart failed: ${failed}`);
const page = document.documentElement;
if (page.scrollWidth > page.clientWidth) found.trouble.push(`the page is ${page.scrollWidth} wide`);
if (performance.getEntriesByType("resource").length) found.trouble.push("it loads something");
for (const section of document.querySelectorAll("section"))
  if (section.getBoundingClientRect().height < 60) found.trouble.push(`${section.id} is empty`);
for (const one of document.querySelectorAll(".tile, button, .acts, h1, h2, h3"))
  if (one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).display !== "inline")
    found.trouble.push(`${one.className || one.nodeName} is cut: ${one.textContent.trim()}`);
const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1
  && a.top < b.bottom - 2 && b.top < a.bottom - 2;
found.charts = {};
for (const chart of document.querySelectorAll(".chart")) {
  const svg = chart.querySelector("svg.marks"), outside = svg.getBoundingClientRect();
  const marks = svg.querySelectorAll(".role-mark :is(path, line, rect, text)").length;
  found.charts[chart.id] = {marks, width: outside.width, room: chart.clientWidth};
  const inside = (box) => box.left >= outside.left - 1 && box.right <= outside.right + 1
    && box.top >= outside.top - 1 && box.bottom <= outside.bottom + 1;
  const texts = [...svg.querySelectorAll(
    ":is(.role-axis-label, .role-axis-title, .role-legend-label, .role-legend-title) text"
  )].filter((text) => text.textContent && getComputedStyle(text).opacity !== "0"
    && text.getAttribute("opacity") !== "0");
  const boxes = texts.map((text) => [text.textContent, text.getBoundingClientRect()]);
  boxes.forEach(([text, box], n) => {
    if (!inside(box)) found.trouble.push(`${chart.id}: ${text} is cut`);
    if (box.height < 7) found.trouble.push(`${chart.id}: ${text} is ${box.height} high`);
    for (const [other, its] of boxes.slice(n + 1))
      if (meet(box, its)) found.trouble.push(`${chart.id}: ${text} and ${other} overlap`);
  });
  const titles = [...svg.querySelectorAll(".role-axis-title text")].map((t) => t.textContent);
  found.charts[chart.id].titles = titles;
}
return found;
})()
