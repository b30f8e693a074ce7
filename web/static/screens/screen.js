// A machine's screen in noVNC.

import keysyms from "../vendor/novnc/core/input/keysymdef.js";
import RFB from "../vendor/novnc/core/rfb.js";
import { ending, run, stage, tell } from "./page.js";

const SHIFTED = /[A-Z~!@#$%^&*()_+{}|:"<>?]/; // on a US keyboard, which QEMU has
const TYPED = { "\n": 0xff0d, "\t": 0xff09 };
const SHIFT = 0xffe1;
const PAUSE = 15; // milliseconds between keys: the machine's keyboard keeps few
let rfb = null;

function open({ url, protocols }) {
  if (rfb) rfb.disconnect();
  stage.replaceChildren();
  const socket = new WebSocket(url, protocols);
  let why = null;
  socket.addEventListener("close", (event) => { why = ending(event.code, event.reason); });
  const opened = new RFB(stage, socket, { shared: true });
  opened.scaleViewport = true;
  opened.background = "#0c0e12";
  opened.addEventListener("connect", () => { tell("open", "Connected"); opened.focus(); });
  opened.addEventListener("disconnect", () => { if (rfb === opened) tell("closed", why || "The connection was lost."); });
  rfb = opened;
}

async function type(text) {
  for (const sign of text) {
    const key = TYPED[sign] || keysyms.lookup(sign.codePointAt(0));
    const shifted = SHIFTED.test(sign);
    if (shifted) rfb.sendKey(SHIFT, null, true);
    rfb.sendKey(key, null);
    if (shifted) rfb.sendKey(SHIFT, null, false);
    await new Promise((done) => { setTimeout(done, PAUSE); });
  }
}

const dialog = document.getElementById("clipboard");
const text = document.getElementById("text");
const untyped = document.getElementById("untyped");

document.getElementById("secure").addEventListener("click", () => { rfb?.sendCtrlAltDel(); rfb?.focus(); });
document.getElementById("paste").addEventListener("click", () => { untyped.textContent = ""; dialog.showModal(); });
dialog.querySelector("form").addEventListener("submit", (event) => {
  if (event.submitter?.value !== "type") return;
  const wanted = text.value.replace(/\r\n?/g, "\n");
  const strange = [...wanted].find((sign) => !TYPED[sign] && !/[ -~]/.test(sign));
  if (strange !== undefined) {
    event.preventDefault();
    untyped.textContent = `“${strange}” cannot be typed on a US keyboard.`;
    return;
  }
  text.value = "";
  rfb?.focus();
  type(wanted);
});
stage.addEventListener("left", () => rfb?.sendKey(SHIFT, "ShiftLeft", false)); // it saw the key go down

run(open, () => rfb?.focus());
