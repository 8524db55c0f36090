// Four behaviours: refresh, progress, copy, pause. Without this script every page and action still works.
"use strict";
(() => {
  const every = Number(document.body.dataset.every) * 1000;
  const note = document.getElementById("live-note");
  const pause = document.getElementById("pause");
  const announcer = document.getElementById("announcer");
  let timer = 0;
  let paused = false;
  let asking = null;
  let failed = "";

  const states = () =>
    new Map([...document.querySelectorAll("[data-announce]")].map((each) => [each.dataset.announce, each.textContent.trim()]));

  const pathTo = (element, root) => {
    const steps = [];
    for (let each = element; each && each !== root; each = each.parentElement) {
      steps.unshift([...each.parentElement.children].indexOf(each));
    }
    return steps;
  };

  const swap = (region, fresh) => {
    if (region.isEqualNode(fresh)) return;
    const focused = region.contains(document.activeElement) ? document.activeElement : null;
    const same = focused && (focused.id ? `#${CSS.escape(focused.id)}` : "");
    const steps = focused ? pathTo(focused, region) : [];
    const open = [...region.querySelectorAll("details")].map((each) => each.open);
    region.replaceChildren(...fresh.childNodes);
    region.querySelectorAll("details").forEach((each, index) => { each.open = open[index] || each.open; });
    if (focused) {
      const found = same ? region.querySelector(same) : steps.reduce((each, step) => each && each.children[step], region);
      if (found) found.focus({ preventScroll: true });
    }
  };

  const refresh = (fresh) => {
    const before = states();
    for (const region of document.querySelectorAll("[data-live]")) {
      const other = fresh.getElementById(region.id);
      const pointed = region.dataset.live === "still" && region.matches(":hover");
      if (other && !pointed) swap(region, document.adoptNode(other));
    }
    const changed = [...states()].filter(([name, text]) => before.has(name) && before.get(name) !== text);
    if (changed.length) announcer.textContent = changed.map(([name, text]) => `${name}: ${text}`).join(". ");
  };

  const say = () => {
    note.textContent = paused ? "paused" : failed ? `not updated since ${failed}` : `every ${every / 1000} s`;
  };

  const later = () => {
    clearTimeout(timer);
    if (!paused && !document.hidden) timer = setTimeout(ask, every);
  };

  const over = (ok) => {
    asking = null;
    if (ok) failed = "";
    else if (!failed) failed = new Date().toISOString().slice(11, 19) + " UTC";
    say();
    later();
  };

  // The browser parses the page as a document that runs no script, so no text ever becomes markup here.
  const ask = () => {
    if (asking) return;
    asking = new XMLHttpRequest();
    asking.open("GET", location.href);
    asking.setRequestHeader("X-Refresh", "1");
    asking.responseType = "document";
    asking.timeout = 10000;
    const request = asking;
    request.onload = () => {
      const fine = request.status === 200 && request.responseXML;
      if (fine && !paused) refresh(request.responseXML);
      over(fine);
    };
    request.onerror = request.ontimeout = () => over(false);
    request.send();
  };

  if (every && document.querySelector("[data-live]")) {
    pause.hidden = false;
    pause.addEventListener("click", () => {
      paused = !paused;
      pause.textContent = paused ? "Resume" : "Pause";
      say();
      if (paused) clearTimeout(timer);
      else ask();
    });
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) clearTimeout(timer);
      else if (!paused) ask();
    });
    say();
    later();
  }

  for (const button of document.querySelectorAll("[data-copy]")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
      announcer.textContent = "Copied";
      button.textContent = "Copied";
    });
  }
  for (const box of document.querySelectorAll("[data-all]")) {
    box.hidden = false;
    const others = [...document.querySelectorAll(`input[name="${CSS.escape(box.dataset.all)}"]`)];
    const input = box.querySelector("input");
    input.addEventListener("change", () => others.forEach((each) => { each.checked = input.checked; }));
  }
})();
