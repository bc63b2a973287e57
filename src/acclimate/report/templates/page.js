// Sorts tables by a click on a heading, fades those that continue beyond their edge, shows, hides and
// highlights labels in all charts, and finds points again in the chart beside. Without this script
// these are plain tables and plain charts.
(() => {
  document.querySelectorAll(".hint").forEach((hint) => { hint.hidden = false; });

  document.querySelectorAll("table.sortable").forEach((table) => {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
        const key = (row) => row.cells[column].dataset.value;
        const compare = (a, b) => {
          // Missing values come last, whichever way.
          if (key(a) === "" || key(b) === "") return (key(a) === "") - (key(b) === "");
          return sign * (head.dataset.sort === "number"
            ? key(a) - key(b)
            : key(a).localeCompare(key(b)));
        };
        body.append(...[...body.rows].sort(compare));
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      });
    });
  });

  const fade = (region) => {
    const rest = region.scrollWidth - region.clientWidth - region.scrollLeft;
    region.classList.toggle("more", rest > 1);
  };
  const sizes = new ResizeObserver((changes) => changes.forEach((change) => fade(change.target)));
  document.querySelectorAll(".scroll").forEach((region) => {
    region.addEventListener("scroll", () => fade(region), { passive: true });
    sizes.observe(region);
    fade(region);
  });

  const main = document.querySelector("main");
  const drawn = new Map();
  document.querySelectorAll(".chart .series[data-label]").forEach((series) => {
    const label = series.dataset.label;
    drawn.set(label, [...(drawn.get(label) || []), series]);
  });
  const buttons = new Map();
  const bring = (label, lit) => {
    main.classList.toggle("dim", lit);
    (drawn.get(label) || []).forEach((series) => series.classList.toggle("lit", lit));
  };
  document.querySelectorAll(".legend li").forEach((item) => {
    const label = item.dataset.label;
    const button = document.createElement("button");
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    button.append(...item.childNodes);
    item.append(button);
    buttons.set(label, [...(buttons.get(label) || []), button]);
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      buttons.get(label).forEach((other) => other.setAttribute("aria-pressed", String(shown)));
      (drawn.get(label) || []).forEach((series) => series.classList.toggle("off", !shown));
    });
    button.addEventListener("pointerenter", () => bring(label, true));
    button.addEventListener("pointerleave", () => bring(label, false));
    // A button that was clicked has the focus too, but was not reached by the keyboard.
    button.addEventListener("focus", () => bring(label, button.matches(":focus-visible")));
    button.addEventListener("blur", () => bring(label, false));
  });

  const clouds = [...document.querySelectorAll("#clouds .chart")];
  clouds.forEach((chart, place) => chart.addEventListener("click", (event) => {
    const point = event.target.closest("[data-point]");
    if (!point) return;
    document.querySelectorAll(".chosen").forEach((other) => other.classList.remove("chosen"));
    // Charts beside each other show the same images: the first two, the next two and so on.
    [place, place ^ 1].filter((index) => clouds[index]).forEach((index) => {
      const same = clouds[index].querySelector(`[data-point="${point.dataset.point}"]`);
      if (same) { same.classList.add("chosen"); same.parentNode.append(same); }
    });
    const name = point.closest(".series").dataset.label;
    document.getElementById("chosen").textContent = `Image ${Number(point.dataset.point) + 1}: ${name}`;
  }));
})();
