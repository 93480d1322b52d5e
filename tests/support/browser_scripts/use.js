// What a reader does with the ranking, and what comes of it.
(async () => {
await window.drawing;
const found = {}, wait = (ms) => new Promise((done) => setTimeout(done, ms));
const until = async (holds) => { for (let n = 0; n < 200 && !holds(); n++) await wait(20); };
const table = document.querySelector("#trials"), filter = document.querySelector("#filter-trials");
const rows = () => [...table.tBodies[0].rows];
const shown = () => rows().filter((row) => !row.hidden).map((row) => row.dataset.trial);
const head = (name) => [...table.tHead.rows[0].cells].find((one) => one.textContent === name);
const type = (text) => {
  filter.value = text;
  filter.dispatchEvent(new Event("input", {bubbles: true}));
};
found.first = shown();
head("lr").querySelector("button").click();
found.ascending = [shown(), head("lr").ariaSort ?? head("lr").getAttribute("aria-sort")];
head("lr").querySelector("button").click();
found.descending = [shown(), head("lr").getAttribute("aria-sort")];
head("lr").querySelector("button").click();
found.back = [shown(), head("lr").getAttribute("aria-sort")];
type("lr<0.01 status=terminated");
found.filtered = shown();
let blob;
URL.createObjectURL = (one) => { blob = one; return "blob:none"; };
HTMLAnchorElement.prototype.click = function () { found.file = this.download; };
document.querySelector("[data-export]").click();
found.csv = await blob.text();
type("no such trial");
found.none = shown();
type("");
table.querySelector("button.trial").click();
const panel = document.querySelector("dialog");
await until(() => panel.open && panel.querySelector("h2"));
const beyond = panel.scrollWidth - panel.clientWidth;
found.panel = [panel.open, location.hash, panel.querySelector("h2").textContent, beyond];
panel.close();
await until(() => location.hash === "");
found.closed = location.hash;
const colour = () => getComputedStyle(document.body).backgroundColor;
document.querySelector("#theme").click();
found.light = colour();
document.querySelector("#theme").click();
found.dark = colour();
const sortable = [...document.querySelectorAll("th[aria-sort]")];
found.reachable = sortable.length > 0 && sortable.every((one) => one.querySelector("button"));
const box = table.closest(".scroll"), cell = table.tBodies[0].rows[0].cells[1];
box.scrollLeft = 10000;
await until(() => box.classList.contains("scrolled"));
found.sticky = [box.scrollLeft > 0 || box.scrollWidth === box.clientWidth,
  cell.getBoundingClientRect().left - box.getBoundingClientRect().left];
return found;
})()
