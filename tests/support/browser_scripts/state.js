// What the page has become of that.
(() => {
const $ = (what) => document.querySelector(what);
const table = $("#trials"), rows = [...table.tBodies[0].rows];
return {
  order: rows.filter((row) => !row.hidden).map((row) => row.dataset.trial),
  sorted: [...table.tHead.rows[0].cells].map((one) => one.getAttribute("aria-sort")),
  filter: $("#filter-trials").value,
  focused: document.activeElement.id,
  open: $("details[data-key]").open,
  scroll: table.closest(".scroll").scrollLeft,
  same: rows.includes(window.kept),
  wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
};
})()
