// A sliver's console in xterm.js. A container learns the window's size; a machine's serial line has 80 × 24.

import { FitAddon } from "../vendor/xterm/addon-fit.mjs";
import { Terminal } from "../vendor/xterm/xterm.mjs";
import { ending, page, run, stage, tell } from "./page.js";
import { permit } from "./policy.js";

permit(document.querySelector("script[nonce]").nonce);

const FULL = 1 << 22; // bytes that xterm.js has not shown yet: what comes then waits for it
const terminal = new Terminal({
  cols: 80, rows: 24, scrollback: 5000, cursorBlink: !matchMedia("(prefers-reduced-motion: reduce)").matches,
  fontFamily: 'ui-monospace, "Cascadia Mono", "DejaVu Sans Mono", Menlo, Consolas, monospace', fontSize: 14,
  theme: { background: "#0c0e12", foreground: "#e4e7ee" },
});
const fits = page.type === "lxc";
const fit = new FitAddon();
let socket = null;
let unshown = 0;

terminal.loadAddon(fit);
terminal.open(stage);

function send(data) {
  if (socket && socket.readyState === WebSocket.OPEN) socket.send(data);
}

function tellSize() {
  if (fits) send(JSON.stringify({ rows: terminal.rows, columns: terminal.cols }));
}

function show(data) {
  unshown += data.length;
  terminal.write(data, () => { unshown -= data.length; });
  if (unshown > FULL) socket.close(4000, "more came than could be shown");
}

function open({ url, protocols }) {
  if (socket) socket.close();
  const opened = new WebSocket(url, protocols);
  opened.binaryType = "arraybuffer";
  opened.addEventListener("open", () => { tell("open", "Connected"); tellSize(); });
  opened.addEventListener("message", (event) => show(new Uint8Array(event.data)));
  opened.addEventListener("close", (event) => {
    if (socket === opened) tell("closed", ending(event.code, event.reason));
  });
  socket = opened;
}

const encoder = new TextEncoder();
terminal.onData((text) => send(encoder.encode(text)));
terminal.onBinary((text) => send(Uint8Array.from(text, (one) => one.charCodeAt(0))));
terminal.onResize(tellSize);
if (fits) {
  fit.fit();
  new ResizeObserver(() => fit.fit()).observe(stage);
}

const reader = document.getElementById("reader");
reader.addEventListener("click", () => {
  const on = !terminal.options.screenReaderMode;
  terminal.options.screenReaderMode = on;
  reader.setAttribute("aria-pressed", String(on));
});

run(open, () => terminal.focus());
terminal.focus();
