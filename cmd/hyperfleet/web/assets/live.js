// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Renews the page every few seconds, while it is looked at. Without it, pages are renewed by hand.
"use strict";

(() => {
  const every = 3000;
  const sign = document.getElementById("live");
  let busy = false;

  const selected = () => {
    const selection = document.getSelection();

    return selection !== null && !selection.isCollapsed;
  };

  const typing = () => document.activeElement instanceof HTMLInputElement;

  async function renew() {
    const main = document.querySelector("main[data-live]");
    if (main === null || busy || document.hidden || selected() || typing()) {
      return;
    }

    busy = true;

    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      const text = await answer.text();
      const next = new DOMParser().parseFromString(text, "text/html");
      const fresh = next.querySelector("main");

      if (fresh !== null && fresh.innerHTML !== main.innerHTML) {
        const log = main.querySelector(".log");
        const at = log === null ? 0 : log.scrollTop;

        main.innerHTML = fresh.innerHTML;

        const renewed = main.querySelector(".log");
        if (renewed !== null) {
          renewed.scrollTop = at;
        }
      }

      sign.textContent = "as of " + next.getElementById("live").dataset.at;
      sign.className = "";
    } catch {
      sign.textContent = "as of " + sign.textContent.replace(/^as of |: .*$/g, "") + ": hyperfleet web does not answer";
      sign.className = "lost";
    } finally {
      busy = false;
    }
  }

  setInterval(renew, every);
  document.addEventListener("visibilitychange", renew);
})();
