(async () => {
const found = {};
let blob, done;
URL.createObjectURL = (one) => { blob = one; return "blob:none"; };
HTMLAnchorElement.prototype.click = function () { done(this.download); };
for (const button of document.querySelectorAll("[data-png]")) {
  const file = await new Promise((resolve) => { done = resolve; button.click(); });
  const bytes = new Uint8Array(await blob.arrayBuffer());
  found[button.dataset.png] = [file, btoa([...bytes].map((b) => String.fromCharCode(b)).join(""))];
}
return found;
})()
