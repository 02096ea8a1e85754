// Makes the shown document like a fresh one in place, so that what a person holds stays as it is:
// the focus, a selection, a field that was edited, an opened detail, the place in a list.

/**
 * The key by which an element is found again, wherever it has moved among its siblings.
 * @param {Node} node
 */
function keyOf(node) {
  if (!(node instanceof Element)) return "";
  return node.getAttribute("id") || node.getAttribute("data-key") || ""; // a form's id may be a field
}

/**
 * @param {Element} old
 * @param {Element} fresh
 * @param {(node: Node, goes?: boolean) => boolean} isHeld  nodes that a person holds: they are left
 *   alone, and stay even if the fresh document has them not (*goes*)
 */
export function morph(old, fresh, isHeld) {
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value && name !== "open") old.setAttribute(name, value);
  }
  if (!(old instanceof HTMLTextAreaElement)) children(old, fresh, isHeld);
}

/**
 * @param {Element} old
 * @param {Element} fresh
 * @param {(node: Node, goes?: boolean) => boolean} isHeld
 */
function children(old, fresh, isHeld) {
  const wanted = new Set([...fresh.childNodes].map(keyOf).filter(Boolean));
  const known = new Map([...old.childNodes].map((node) => [keyOf(node), node]));
  /** @type {ChildNode | null} */
  let at = old.firstChild;
  for (const next of [...fresh.childNodes]) {
    const key = keyOf(next);
    /** @type {ChildNode | null} */
    let match = key ? (known.get(key) ?? null) : at;
    while (!key && match && (keyOf(match) || match.nodeName !== next.nodeName)) match = match.nextSibling;
    if (!match || match.nodeName !== next.nodeName) {
      old.insertBefore(next, at);
      continue;
    }
    while (at && at !== match && !wanted.has(keyOf(at))) at = drop(at, isHeld);
    if (at === match) at = at.nextSibling;
    else old.insertBefore(match, at);
    if (isHeld(match)) continue;
    if (match instanceof Element) morph(match, /** @type {Element} */ (next), isHeld);
    else if (match.nodeValue !== next.nodeValue) match.nodeValue = next.nodeValue;
  }
  while (at) at = drop(at, isHeld);
}

/**
 * Remove a node, unless it is held; returns its next sibling.
 * @param {ChildNode} node
 * @param {(node: Node, goes?: boolean) => boolean} isHeld
 */
function drop(node, isHeld) {
  const next = node.nextSibling;
  if (!isHeld(node, true)) node.remove();
  return next;
}
