// What scripts add to pages that work without them.
"use strict";

// A moment is written in UTC; hovering over it tells the time where the reader is.
const localTimes = (part) => {
  for (const time of part.querySelectorAll("time[datetime]")) {
    const at = new Date(time.getAttribute("datetime"));
    if (!isNaN(at)) time.title = at.toLocaleString();
  }
};
localTimes(document);

for (const form of document.querySelectorAll("form[method=post]")) {
  // What belongs to some choices is shown with those alone.
  const parts = form.querySelectorAll("[data-with]");
  const chosen = () => form.querySelector("input[name=action]:checked");
  const show = () => {
    for (const part of parts) {
      part.hidden = !part.dataset.with.split(" ").includes(chosen()?.value);
      // What nobody sees is not asked for, so that it holds up nothing.
      for (const field of part.querySelectorAll("input, textarea")) field.disabled = part.hidden;
    }
  };
  form.addEventListener("change", show);
  show();

  form.addEventListener("submit", (event) => {
    const question = chosen()?.dataset.confirm;
    if (question && !window.confirm(question)) return event.preventDefault();
    // A second click sends nothing; the button is free again when somebody comes back to the page.
    for (const button of form.querySelectorAll("button")) button.disabled = true;
  });
}

window.addEventListener("pageshow", () => {
  for (const button of document.querySelectorAll("button:disabled")) button.disabled = false;
});

// Live pages: a stream says when there is something new, and the page then fetches itself and takes over its live parts.
const stream = document.getElementById("live");
if (stream && document.querySelector("[data-live]") && window.EventSource) {
  const RETRY_MS = 30000;
  let source = null, shown = null, busy = false, again = false, timer = null;

  const say = (text, kind) => {
    if (stream.textContent !== text) stream.textContent = text;
    stream.className = "live " + kind;
    stream.hidden = false;
  };

  const takeOver = (text) => {
    const page = new DOMParser().parseFromString(text, "text/html");
    for (const part of document.querySelectorAll("[data-live]")) {
      const fresh = page.getElementById(part.id);
      // What somebody is typing into or has reached by keyboard is left as it is until they have moved on.
      if (!fresh || part.contains(document.activeElement) || fresh.innerHTML === part.dataset.was) continue;
      const open = [...part.querySelectorAll("details")].map((one) => one.open);
      const scrolled = [...part.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
      part.dataset.was = fresh.innerHTML;
      part.replaceChildren(...fresh.childNodes);
      part.querySelectorAll("details").forEach((one, place) => { one.open = open[place] ?? false; });
      part.querySelectorAll(".scroll").forEach((one, place) => { one.scrollLeft = scrolled[place] ?? 0; });
      localTimes(part);
    }
  };

  const refresh = async () => {
    if (busy) { again = true; return; }
    busy = true;
    try {
      // What answers a form is at the address of that form, where there is nothing to fetch: it says where it is.
      const answer = await fetch(stream.dataset.page || window.location.href, { credentials: "same-origin", redirect: "manual" });
      if (answer.type === "opaqueredirect") { stop("signed out", "off"); return; }
      if (answer.ok) { takeOver(await answer.text()); say("live", "on"); } else say("reconnecting", "off");
    } catch { say("reconnecting", "off"); } finally {
      busy = false;
      if (again) { again = false; refresh(); }
    }
  };

  const stop = (text, kind) => {
    source?.close();
    source = null;
    if (text) say(text, kind);
  };

  const start = () => {
    clearTimeout(timer);
    if (source || document.hidden) return;
    source = new EventSource(stream.dataset.stream);
    source.onopen = () => say("live", "on");
    source.addEventListener("version", (event) => {
      if (event.data === "trouble") { say("the store does not answer", "off"); return; }
      if (event.data && event.data !== shown) { if (shown !== null) refresh(); shown = event.data; }
      say("live", "on");
    });
    source.onerror = () => {
      // It asks again by itself, unless it was refused: then much later.
      if (source?.readyState === EventSource.CLOSED) {
        stop("not live", "off");
        timer = setTimeout(start, RETRY_MS);
      } else say("reconnecting", "off");
    };
  };

  // A page that nobody sees listens to nothing; once it is seen again it shows what is new.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) stop();
    else { start(); refresh(); }
  });
  window.addEventListener("pagehide", () => stop());
  start();
}
