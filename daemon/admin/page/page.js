// Keeps the page up to date: only the parts marked data-live are exchanged, so that focus,
// scrolling and what has been typed stay. Without this script the page is whole, but stands still.
"use strict";
(() => {
  const every = 2000;
  const patience = 10000;
  const button = document.getElementById("pause");
  const status = document.getElementById("status");
  let paused = false;
  let timer = 0;

  // say changes the status line only when it says something new: it is read aloud.
  function say(text) {
    if (status.textContent !== text) {
      status.textContent = text;
    }
  }

  // inUse is whether somebody would notice that e is exchanged.
  function inUse(e) {
    const s = document.getSelection();
    return e.contains(document.activeElement) || e.querySelector(".band:hover") || (s && !s.isCollapsed && s.containsNode(e, true));
  }

  function exchange(next) {
    for (const old of document.querySelectorAll("[data-live]")) {
      const now = next.getElementById(old.id);
      if (now && !inUse(old)) {
        old.replaceWith(document.adoptNode(now));
      }
    }
    document.title = next.title;
  }

  async function update() {
    try {
      const r = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(patience) });
      if (!r.ok) {
        throw new Error(`${r.status}`);
      }
      const text = await r.text();
      if (!paused) {
        exchange(new DOMParser().parseFromString(text, "text/html"));
        say("");
      }
    } catch {
      say("The daemon does not answer: this is how it was.");
    }
    plan();
  }

  function plan() {
    clearTimeout(timer);
    if (!paused && !document.hidden) {
      timer = setTimeout(update, every);
    }
  }

  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", `${paused}`);
    say(paused ? "Paused." : "");
    plan();
  });
  document.addEventListener("visibilitychange", plan);
  plan();
})();
