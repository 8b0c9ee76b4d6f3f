"""The look of the report's page, and its script, which sorts tables."""

from __future__ import annotations

__all__ = ["SCRIPT", "STYLE"]

STYLE = """
:root{--page:#fbfbf9;--sheet:#fff;--ink:#1d2126;--soft:#5d6570;--line:#e2e2dc;--tint:#f2f2ed;--link:#0a5a8f;
--good:#00735a;--warn:#8a4b00;--warn-page:#fff3df;--bad:#a8261c;--shade:#0002}
@media (prefers-color-scheme:dark){:root{--page:#14171a;--sheet:#1b1f23;--ink:#e7e8e6;--soft:#9aa3ad;--line:#30353b;
--tint:#22272c;--link:#7fc0ee;--good:#5ed0b0;--warn:#ffc46b;--warn-page:#33270f;--bad:#ff8f82;--shade:#000a}}
*{box-sizing:border-box}
html{scroll-behavior:smooth}
@media (prefers-reduced-motion:reduce){html{scroll-behavior:auto}}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.55 ui-sans-serif,system-ui,-apple-system,"Segoe UI",
Roboto,"Helvetica Neue",Arial,sans-serif;-webkit-text-size-adjust:100%}
main{max-width:74rem;margin:0 auto;padding:3rem 1.5rem 4rem}
h1{font-size:clamp(1.7rem,4vw,2.5rem);line-height:1.15;letter-spacing:-.02em;margin:.1rem 0 .6rem;font-weight:680}
h2{font-size:1.35rem;letter-spacing:-.01em;margin:3.2rem 0 1rem;padding-top:1.2rem;border-top:1px solid var(--line)}
h3{font-size:1rem;margin:1.8rem 0 .5rem;font-weight:600}
a{color:var(--link)}
code{font:.875em ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}
.over{margin:0;color:var(--soft);font-size:.9rem;letter-spacing:.02em}
.under{display:flex;flex-wrap:wrap;gap:.4rem .9rem;align-items:center;margin:0;color:var(--soft);font-size:.9rem}
.state{padding:.05rem .55rem;border-radius:1rem;border:1px solid currentColor;font-size:.8rem}
.finished{color:var(--good)}.interrupted,.running{color:var(--warn)}.failed,.diverged{color:var(--bad)}
.warning{margin:1rem 0 0;padding:.55rem .9rem;border-left:4px solid var(--warn);background:var(--warn-page);
border-radius:0 .4rem .4rem 0}
.tiles{display:flex;flex-wrap:wrap;gap:.7rem;margin:1.6rem 0 1.2rem}
.tile{display:flex;flex-direction:column;min-width:6.5rem;padding:.6rem .9rem;background:var(--sheet);
border:1px solid var(--line);border-radius:.6rem}
.tile dd{margin:0;font-size:1.35rem;font-weight:640;font-variant-numeric:tabular-nums}
.tile dt{color:var(--soft);font-size:.8rem}
.tile.failed dd,.tile.diverged dd{color:var(--bad)}.tile.skipped dd{color:var(--soft)}
.facts{list-style:none;margin:0;padding:0;color:var(--soft);font-size:.9rem;overflow-wrap:anywhere}
.facts b{color:var(--ink);font-weight:600}
nav{display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;margin-top:1.4rem;font-size:.95rem}
figure{margin:0 0 2rem}
.sheet{background:#fff;border:1px solid var(--line);border-radius:.6rem;padding:.9rem;overflow-x:auto;text-align:center}
.sheet svg{display:block;width:100%;height:auto;margin:0 auto}
.sheet svg *{stroke-linejoin:round;stroke-linecap:butt}
figcaption{color:var(--soft);font-size:.85rem;margin-top:.4rem}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:.6rem;
background:linear-gradient(to left,var(--sheet) 40%,#0000) right/3rem 100% no-repeat local,
linear-gradient(to left,var(--shade),#0000) right/.9rem 100% no-repeat scroll,var(--sheet)}
table{border-collapse:separate;border-spacing:0;width:100%;font-size:.875rem;font-variant-numeric:tabular-nums}
th,td{padding:.32rem .75rem;white-space:nowrap;text-align:left}
th{font-weight:600;background:var(--tint);border-bottom:1px solid var(--line)}
tbody tr+tr td{border-top:1px solid var(--line)}
tbody tr:hover td{background:var(--tint)}
.sorts tr>:first-child{position:sticky;left:0;border-right:1px solid var(--line)}
.sorts td:first-child{background:var(--sheet)}
.r{text-align:right}
th button{all:unset;cursor:pointer;font-weight:600}
th button:focus-visible{outline:2px solid var(--link);outline-offset:2px;border-radius:2px}
th button::after{content:"";display:inline-block;width:.9em;text-align:center;color:var(--link)}
.r button::after{margin-right:-.9em}
th[aria-sort=ascending] button::after{content:"\\2191"}
th[aria-sort=descending] button::after{content:"\\2193"}
.pairs td{white-space:normal;overflow-wrap:anywhere;vertical-align:top}
.pairs td:first-child{color:var(--soft);white-space:nowrap;width:1%}
.notes{color:var(--warn);font-size:.9rem;padding-left:1.1rem}
.legend{color:var(--soft);font-size:.85rem;max-width:62rem}
details{margin:.6rem 0}
summary{cursor:pointer;font-weight:600;padding:.3rem 0}
footer{margin-top:3rem;padding-top:1rem;border-top:1px solid var(--line);color:var(--soft);font-size:.85rem}
@media (max-width:40rem){main{padding:1.6rem 1rem 3rem}.sheet svg{min-width:36rem}
.sorts tr>:first-child{min-width:8.5rem;max-width:9.5rem;white-space:normal;overflow-wrap:anywhere}}
@media print{body{background:#fff}nav,th button::after{display:none}.scroll,.sheet{overflow:visible}
figure{break-inside:avoid}}
""".strip()

SCRIPT = """
"use strict";
(function () {
  var order = new Intl.Collator("en", { numeric: true });
  function value(row, column) {
    var cell = row.cells[column];
    if (cell.hasAttribute("data-k")) return { rank: 0, key: Number(cell.getAttribute("data-k")) };
    var text = cell.textContent.replace(/^[!✗–\\s]+/, "").trim();
    return text ? { rank: 1, key: text } : { rank: 2, key: "" };
  }
  function sort(table, column, down) {
    var body = table.tBodies[0], rows = Array.prototype.slice.call(body.rows);
    rows.forEach(function (row, place) { if (row.place === undefined) row.place = place; });
    rows.sort(function (a, b) {
      var x = value(a, column), y = value(b, column);
      if (x.rank !== y.rank) return x.rank - y.rank;
      if (x.key === y.key) return a.place - b.place;
      var before = x.rank ? order.compare(x.key, y.key) : x.key - y.key;
      return before ? (down ? -before : before) : a.place - b.place;
    });
    rows.forEach(function (row) { body.appendChild(row); });
  }
  document.querySelectorAll("th button").forEach(function (button) {
    button.addEventListener("click", function () {
      var head = button.parentNode, table = head.closest("table");
      var down = head.getAttribute("aria-sort") === "ascending";
      table.querySelectorAll("th").forEach(function (other) { other.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      sort(table, head.cellIndex, down);
    });
  });
  document.documentElement.setAttribute("data-ready", "yes");
})();
""".strip()
