(async () => {
let blob;
URL.createObjectURL = (one) => { blob = one; return "blob:none"; };
HTMLAnchorElement.prototype.click = () => {};
document.querySelector("[data-export]").click();
return {csv: await blob.text()};
})()
