"use strict";
// Progress of a form with a file. Without this the browser sends the form itself, and shows no progress.

const words = (bytes) => {
  let unit = 0;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  while (bytes >= 1024 && unit < 4) { bytes /= 1024; unit += 1; }
  return `${bytes >= 100 || unit === 0 ? Math.round(bytes) : bytes.toFixed(1)} ${units[unit]}`;
};

function watch(form) {
  const box = form.querySelector(".sending");
  const [bar, said] = [box.querySelector("progress"), box.querySelector("p")];
  const [send, stop] = [form.querySelector("button.primary"), form.querySelector(".stop-sending")];
  let running = null;

  const end = (message) => {
    running = null;
    send.disabled = false;
    stop.hidden = true;
    said.textContent = message;
  };

  // The form with its errors takes the place of this one; the file that was chosen stays chosen.
  const showErrors = (text) => {
    const chosen = form.elements.file.files;
    document.querySelector("main").replaceWith(new DOMParser().parseFromString(text, "text/html").querySelector("main"));
    const again = document.querySelector("form[data-upload]");
    if (again) { again.elements.file.files = chosen; watch(again); }
    (document.querySelector("[aria-invalid=true]") || document.querySelector("main")).focus();
  };

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (running) return;
    const request = running = new XMLHttpRequest();
    box.hidden = stop.hidden = false;
    send.disabled = true;
    said.textContent = `${words(form.elements.file.files[0].size)} to send`;
    request.upload.addEventListener("progress", ({ loaded, total }) => {
      bar.value = 100 * loaded / total;
      said.textContent = loaded < total ? `${words(loaded)} of ${words(total)} sent` : "Upload complete. The service is storing the file\u2026";
    });
    request.addEventListener("load", () => {
      const target = request.getResponseHeader("X-Location");
      if (target) location.assign(target); else showErrors(request.responseText);
    });
    request.addEventListener("error", () => end("The connection was interrupted, and the upload was discarded. Try again."));
    request.addEventListener("abort", () => end("Stopped. Nothing of it was kept."));
    request.open("POST", form.action);
    request.setRequestHeader("X-Upload", "1");
    request.send(new FormData(form));
  });
  stop.addEventListener("click", () => running && running.abort());
}

document.querySelectorAll("form[data-upload]").forEach(watch);
