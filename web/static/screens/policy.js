// The page's policy allows style elements with its nonce alone, and no style attributes. xterm.js makes both by script:
// here its elements get the nonce, and its attributes become properties, which the policy does not mean.

/** nonce: of the page's policy. */
export function permit(nonce) {
  const create = Document.prototype.createElement;
  Document.prototype.createElement = function (name, ...more) {
    const made = create.call(this, name, ...more);
    if (made instanceof HTMLStyleElement) made.nonce = nonce;
    return made;
  };
  const set = Element.prototype.setAttribute;
  Element.prototype.setAttribute = function (name, value) {
    if (name === "style" && this.style) this.style.cssText = value;
    else set.call(this, name, value);
  };
}
