// Says so when a page can no longer fetch itself anew. Everything else works without scripts.
(() => {
  "use strict";
  const show = (stale) => { document.getElementById("stale").hidden = !stale; };
  document.addEventListener("htmx:sendError", () => show(true));
  document.addEventListener("htmx:responseError", () => show(true));
  document.addEventListener("htmx:afterOnLoad", () => show(false));
})();
