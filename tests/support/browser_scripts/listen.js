// What goes wrong in the page, from the beginning.
window.trouble = [];
addEventListener("securitypolicyviolation", (event) =>
  trouble.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sourceFile}`));
addEventListener("error", (event) => trouble.push(event.message));
addEventListener("unhandledrejection", (event) => trouble.push(String(event.reason)));
