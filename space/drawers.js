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
/* Whoever goes on by Tab leaves it: below lie controls that nobody would see. */
document.addEventListener("focusin", ({ target }) => { if (opener && target !== opener && !target.closest(".ps-drawer, ul[role=listbox], #status")) closeDrawers(false); });
