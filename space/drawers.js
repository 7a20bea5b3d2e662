/* Drawers slide in at the side, on a phone from below. */
let opener = null;
function openDrawer(id, button) {
  const drawer = document.getElementById(id);
  if (!drawer) return;
  drawn?.end();
  if (opener) closeDrawers();
  opener = button;
  drawer.inert = false;
  drawer.classList.add("ps-open");
  if (id === "share") { drawer.classList.add("ps-waits"); document.getElementById("make-share").click(); }
  button.setAttribute("aria-expanded", "true");
  focusInto(drawer);
}
/* Gradio lets what it draws fade in, and nothing that is still hidden takes the focus. */
function focusInto(drawer) {
  if (!drawer.matches(".ps-open") || drawer.contains(document.activeElement)) return;
  drawer.querySelector("[data-close]")?.focus();
  requestAnimationFrame(() => focusInto(drawer));
}
function closeDrawers(givesBack = true) {
  for (const drawer of document.querySelectorAll(".ps-drawer")) { drawer.classList.remove("ps-open"); drawer.inert = true; }
  for (const button of document.querySelectorAll("[data-open][aria-expanded=true]")) button.setAttribute("aria-expanded", "false");
  const back = opener?.isConnected ? opener : document.querySelector(`[data-open="${opener?.dataset.open}"]`);
  opener = null;
  if (givesBack) back?.focus();
}
document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-open]");
  if (button?.dataset.open === "game") return;
  if (button) return openDrawer(button.dataset.open, button);
  if (event.target.closest?.("[data-close]") || (opener && !event.target.closest?.(".ps-drawer, ul[role=listbox]"))) closeDrawers();
});
document.addEventListener("keydown", ({ key, isTrusted }) => { if (key === "Escape" && isTrusted && opener) closeDrawers(); });
/* The focus stays in the drawer: behind its last control comes the first, and before the first the last. */
const REACHED = "a[href], button, input, textarea, summary, [tabindex]:not([tabindex='-1'])";
document.addEventListener("keydown", (event) => {
  const drawer = document.querySelector(".ps-drawer.ps-open");
  if (event.key !== "Tab" || !drawer) return;
  const controls = [...drawer.querySelectorAll(REACHED)].filter((one) => !one.disabled && one.tabIndex >= 0 && one.checkVisibility({ visibilityProperty: true }));
  const [first, last] = [controls[0], controls.at(-1)], at = document.activeElement, inside = drawer.contains(at);
  if (inside && at !== (event.shiftKey ? first : last)) return;
  event.preventDefault();
  (event.shiftKey ? last : first).focus();
}, true); // before a list of gradio's takes it
