/* Extensions of Sphinx's search. Sphinx puts this into language_data.js (html_search_scorer),
   which is loaded after searchtools.js. */

// Pages that explain rank above pages that record decisions or changes.
const LESS = [
  [/^(decisions\/|changelog$)/, 0.4],
  [/^(how-it-works|contributing|index)$/, 0.6],
  [/^reference$/, 0.8],
];

const weight = (page, kind) =>
  kind === "object" ? 1 : (LESS.find(([pages]) => pages.test(page)) ?? [null, 1])[1];

Scorer.score = ([page, , , , score, , kind]) => score * weight(page, kind);

// Sphinx finds a section only if the query is at least half of its title. Here, any words of the
// title are enough.
const SECTION = 8; // between a word in the text (5) and a title (15)

const performSearch = Search._performSearch;

Search._performSearch = (query, ...parsed) => {
  const results = performSearch(query, ...parsed);
  const { alltitles, docnames, filenames, titles } = Search._index;
  const words = query.trim().split(/\s+/).filter(Boolean);
  if (!words.length) return results;
  const known = new Set(results.map(([page, , anchor]) => page + anchor));
  const wanted = words.map((word) => new RegExp(`(^|\\W)${_escapeRegExp(word)}`, "i"));
  for (const [title, places] of Object.entries(alltitles)) {
    if (!wanted.every((word) => word.test(title))) continue;
    for (const [number, id] of places) {
      const page = docnames[number];
      if (id === null || known.has(`${page}#${id}`)) continue;
      const score = SECTION * weight(page, "title");
      const shown = `${titles[number]} > ${title}`;
      results.push([page, shown, `#${id}`, null, score, filenames[number], "title"]);
    }
  }
  return results.sort((a, b) => a[4] - b[4]); // the last one is shown first
};
