// Sorting the table by a click on a heading; without this script it is a plain table.
(() => {
  const table = document.getElementById("results");
  const body = table.tBodies[0];
  document.getElementById("hint").hidden = false;
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      const key = (row) => row.cells[column].dataset.value;
      const compare = head.dataset.sort === "number"
        ? (a, b) => key(a) - key(b)
        : (a, b) => key(a).localeCompare(key(b));
      body.append(...[...body.rows].sort((a, b) => sign * compare(a, b)));
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    });
  });
})();
