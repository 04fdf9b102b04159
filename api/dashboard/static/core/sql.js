/** SQL cut into coloured pieces; of the language of rules and of queries alike. */

const KEYWORDS = new Set(
  `all and anti as asc between by case cast cluster cross cube current decode desc distinct div do
  else end escape except exists false filter first following for foreach from full group grouping
  having ignore ilike in incase inner intersect interval into is join last lateral left like limit
  minus mod natural not null nulls of offset on or order outer over partition preceding range
  respect right rlike regexp rollup row rows select semi sets table then timestamp to true try_cast
  unbounded union using values version view when where window with within`.split(/\s+/u),
);

const PIECES =
  /(?<comment>--[^\n]*|\/\*[\s\S]*?(?:\*\/|$))|(?<text>'(?:[^']|'')*'?|"(?:[^"]|"")*"?|`[^`]*`?)|(?<number>\b\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\b)|(?<word>[\p{L}_][\p{L}\p{N}_]*)|(?<space>\s+)|(?<other>[\s\S])/gu;

/** Return the pieces of a text in order, each as [class, text]; together they are the text. */
export function tokens(sql) {
  const found = [];
  for (const piece of sql.matchAll(PIECES)) {
    const { comment, text, number, word } = piece.groups;
    let kind = "";
    if (comment !== undefined) kind = "comment";
    else if (text !== undefined) kind = "text";
    else if (number !== undefined) kind = "number";
    else if (word !== undefined) {
      const isCalled = sql[piece.index + word.length] === "(";
      if (KEYWORDS.has(word.toLowerCase()) && !isNameOfField(sql, piece.index)) kind = "keyword";
      else if (isCalled) kind = "function";
    }
    found.push([kind, piece[0]]);
  }
  return found;
}

/** `payload.from` is a field, whatever `from` is elsewhere. */
function isNameOfField(sql, index) {
  return sql[index - 1] === "." || sql[index - 1] === ":";
}

/** Return a text as a literal of Spark SQL. */
export function quoted(text) {
  return `'${text.replace(/[\\']/gu, "\\$&")}'`;
}
