/**
 * An element that the page always has.
 * @type {<T extends Element>(root: ParentNode, selector: string, kind: new () => T) => T}
 */
const part = (root, selector, kind) => {
  const found = root.querySelector(selector);
  if (found instanceof kind) return found;
  throw new Error('the page lacks ' + selector);
};
/* Names reach the page as text only: textContent, never markup. */
/** @param {string} id */
const read = id => JSON.parse(part(document, '#' + id, HTMLScriptElement).text);
/** @type {Verdict} */
const verdict = read('verdict');
/** @type {Series} */
const series = read('series');
const columns = series.steps.length;
