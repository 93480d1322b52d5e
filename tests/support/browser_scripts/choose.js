// A reader chooses an order, a filter and a cause, and scrolls.
(() => {
const $ = (what) => document.querySelector(what);
const table = $("#trials");
[...table.tHead.rows[0].cells].find((one) => one.textContent === "lr")
  .querySelector("button").click();
$("#filter-trials").value = "lr<0.35";
$("#filter-trials").dispatchEvent(new Event("input", {bubbles: true}));
$("#filter-trials").focus();
$("details[data-key]").open = true;
table.closest(".scroll").scrollLeft = 40;
window.kept = table.tBodies[0].rows[0];
})()
