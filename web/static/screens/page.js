// What the pages of consoles and screens have in common: the ticket, the state, the buttons, the way out.

const PROTOCOL = "slicemgr.console.v1";
const stage = document.getElementById("stage");
const state = document.getElementById("state");
const reconnect = document.getElementById("reconnect");
const full = document.getElementById("full");
const page = document.body.dataset;

/** The state of the connection on the page: connecting, open or closed. */
export function tell(what, text) {
  state.dataset.state = what;
  state.textContent = text;
  reconnect.hidden = what !== "closed";
  if (what === "closed" && stage.contains(document.activeElement)) reconnect.focus();
}

/** Where to connect, and with which protocols: good once, and soon. Throws an Error with the service's words. */
export async function ticket() {
  const answer = await fetch(page.ticket, {
    method: "POST", credentials: "same-origin", headers: { "X-CSRFToken": page.proof },
  });
  if (answer.redirected) {
    location.assign(page.signIn);
    throw new Error("You are signed out.");
  }
  if (!answer.ok) throw new Error(reason(await answer.text(), answer.status));
  const told = await answer.json();
  const url = new URL(told.path, location.href);
  url.protocol = url.protocol.replace("http", "ws");
  return { url: url.href, protocols: [PROTOCOL, `token.${told.token}`] };
}

function reason(text, status) {
  const trouble = new DOMParser().parseFromString(text, "text/html").querySelector(".trouble h1 + p");
  return trouble ? trouble.textContent.trim() : `The service answers with status ${status}.`;
}

/** Why a WebSocket closed, in words. code, reason: of its event. */
export function ending(code, text) {
  if (text) return text.charAt(0).toUpperCase() + text.slice(1) + ".";
  return code === 1000 ? "Closed." : "The connection was lost.";
}

/** Connect now and whenever asked to; the way out and the whole screen. open: connects. focus: into the terminal. */
export function run(open, focus) {
  let busy = false;
  const connect = async () => {
    if (busy) return;
    busy = true;
    tell("connecting", "Connecting…");
    try {
      await open(await ticket());
    } catch (error) {
      tell("closed", error instanceof TypeError ? "The service does not answer." : error.message);
    } finally {
      busy = false;
    }
  };
  reconnect.addEventListener("click", () => { connect(); focus(); });
  full.addEventListener("click", () => {
    if (document.fullscreenElement) document.exitFullscreen();
    else document.documentElement.requestFullscreen().then(focus, () => { full.disabled = true; });
  });
  document.addEventListener("fullscreenchange", () => {
    full.setAttribute("aria-pressed", String(Boolean(document.fullscreenElement)));
  });
  stage.addEventListener("keydown", (event) => {
    if (event.key !== "F6" || !event.shiftKey) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    (reconnect.hidden ? full : reconnect).focus();
    stage.dispatchEvent(new Event("left"));
  }, true);
  connect();
}

export { stage, page };
