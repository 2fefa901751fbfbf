const SVG = 'http://www.w3.org/2000/svg';
/** @type {<K extends keyof SVGElementTagNameMap>(tag: K, attributes: Attributes, parent?: Element, text?: string | number) => SVGElementTagNameMap[K]} */
const svg = (tag, attributes, parent, text) => {
  const element = document.createElementNS(SVG, tag);
  for (const name in attributes) element.setAttribute(name, String(attributes[name]));
  if (text !== undefined) element.textContent = String(text);
  if (parent) parent.append(element);
  return element;
};
/** @type {<K extends keyof HTMLElementTagNameMap>(tag: K, text?: string, name?: string) => HTMLElementTagNameMap[K]} */
const tagged = (tag, text, name) => {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text !== undefined) element.textContent = text;
  return element;
};
/* Paper has a width of its own. */
const PAPER = CSS.supports('zoom', '0.8') ? 820 : 660;
let printing = false;
/** @type {(host: HTMLElement) => number} */
const widthOf = host => printing ? PAPER : host.clientWidth;
/** @type {(value: number, low: number, high: number) => number} */
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

/** @type {(s: number) => string} */
const duration = s => s >= 100 ? s.toFixed(0) + ' s' : s >= 1 ? s.toFixed(2) + ' s'
  : s >= 1e-3 ? (s * 1e3).toFixed(1) + ' ms' : s >= 1e-6 ? (s * 1e6).toFixed(0) + ' \u00b5s' : '0';
/** @type {(share: number) => string} */
const percent = share => (share * 100).toFixed(0) + ' %';
/** @type {(span: number, most: number) => number} */
const nice = (span, most) => {
  const raw = span / Math.max(1, most), ten = 10 ** Math.floor(Math.log10(raw));
  return ten * ([1, 2, 5, 10].find(step => step * ten >= raw * 0.999) ?? 10);
};
/* A number of an axis: short, and as exact as its neighbours need. */
/** @type {(s: number, step: number) => string} */
const tick = (s, step) => {
  if (!s) return '0';
  const [unit, name] = step >= 0.5 || s >= 10 ? [1, 's'] : [1e3, 'ms'];
  return (s * unit).toFixed(step * unit >= 0.999 ? 0 : step * unit >= 0.0999 ? 1 : 2) + ' ' + name;
};
