"use strict";
(() => {
  const order = new Intl.Collator("en", { numeric: true });

  // Numbers come first, then words, then empty cells.
  function sortKey(row, column) {
    const cell = row.cells[column];
    if (cell.hasAttribute("data-k")) return { rank: 0, key: Number(cell.getAttribute("data-k")) };
    const text = cell.textContent.replace(/^[!✗–\s]+/, "").trim();
    return text ? { rank: 1, key: text } : { rank: 2, key: "" };
  }

  function sortRows(table, column, descending) {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    rows.forEach((row, place) => { row.place ??= place; });
    rows.sort((a, b) => {
      const x = sortKey(a, column), y = sortKey(b, column);
      if (x.rank !== y.rank) return x.rank - y.rank;
      if (x.key === y.key) return a.place - b.place;
      const before = x.rank ? order.compare(x.key, y.key) : x.key - y.key;
      return before ? (descending ? -before : before) : a.place - b.place;
    });
    body.append(...rows);
  }

  function makeSortable(table) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head) => head.querySelector("button").addEventListener("click", () => {
      const descending = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      sortRows(table, head.cellIndex, descending);
    }));
  }

  function showColumn(table, column, shown) {
    for (const row of table.rows) row.cells[column].hidden = !shown;
  }

  // A box for each column; those marked as spare are hidden, the most spare first, until the table fits its frame.
  function makeColumnsSelectable(table) {
    const frame = table.parentElement;
    const heads = [...table.tHead.rows[0].cells];
    const details = document.createElement("details");
    details.className = "columns";
    details.append(document.createElement("summary"));
    const boxes = heads.map((head, column) => {
      const label = document.createElement("label");
      const box = document.createElement("input");
      box.type = "checkbox";
      box.checked = true;
      box.disabled = column === 0;
      box.addEventListener("change", () => { showColumn(table, column, box.checked); count(); });
      label.append(box, ` ${head.textContent.trim() || "mark"}`);
      details.append(label);
      return box;
    });
    function count() {
      const shown = boxes.filter((box) => box.checked).length;
      details.firstChild.textContent =
        shown < boxes.length ? `Columns: ${shown} of ${boxes.length} shown` : `Columns: all ${boxes.length} shown`;
    }
    const spare = heads.filter((head) => head.hasAttribute("data-spare"));
    spare.sort((a, b) => a.getAttribute("data-spare") - b.getAttribute("data-spare"));
    for (const head of spare) {
      if (frame.scrollWidth <= frame.clientWidth) break;
      boxes[head.cellIndex].checked = false;
      showColumn(table, head.cellIndex, false);
    }
    count();
    frame.before(details);
  }

  document.querySelectorAll("table.sorts").forEach((table) => {
    makeSortable(table);
    makeColumnsSelectable(table);
  });
  document.documentElement.setAttribute("data-ready", "yes");
})();
