// Refreshes the parts marked data-live from the page's own address. Nothing here is needed: every page is whole without it.

const EVERY_MS = 2000;
const announcer = document.getElementById("announcer");
const toggle = document.getElementById("live");
document.documentElement.classList.add("scripted");
let live = sessionStorage.getItem("live") !== "off";

const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null);
const isBlank = (node) => node.nodeType === Node.TEXT_NODE && node.data.trim() === "";

/** Make `old` like `fresh` with as few changes as possible: focus, choices, open details and selected text stay. */
function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || keyOf(old) !== keyOf(fresh)) {
    old.replaceWith(fresh);
  } else if (old.nodeType === Node.ELEMENT_NODE) {
    morphAttributes(old, fresh);
    morphChildren(old, fresh);
  } else if (old.data !== fresh.data) {
    old.data = fresh.data;
  }
}

function morphAttributes(old, fresh) {
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
}

function morphChildren(old, fresh) {
  if ([...old.children, ...fresh.children].some((child) => keyOf(child) !== null)) {
    for (const parent of [old, fresh]) [...parent.childNodes].filter(isBlank).forEach((node) => node.remove());
  }
  const wanted = [...fresh.childNodes];
  const keys = new Set(wanted.map(keyOf));
  for (const child of [...old.children]) {
    if (keyOf(child) !== null && !keys.has(keyOf(child))) child.remove();
  }
  wanted.forEach((want, index) => {
    const have = old.childNodes[index];
    if (have === undefined) old.append(want);
    else if (keyOf(want) !== null && keyOf(want) !== keyOf(have)) {
      const known = [...old.children].find((child) => keyOf(child) === keyOf(want));
      old.insertBefore(known ?? want, have);
      if (known) morph(known, want);
    } else morph(have, want);
  });
  while (old.childNodes.length > wanted.length) old.lastChild.remove();
}

function sentences() {
  const marked = [...document.querySelectorAll("[data-announce]")];
  return new Map(marked.map((one) => [one.id || keyOf(one) || "", one.dataset.announce]));
}

function show(page) {
  const before = sentences();
  const focused = document.activeElement;
  for (const part of document.querySelectorAll("[data-live]")) {
    const fresh = page.getElementById(part.id);
    if (fresh) morph(part, fresh);
  }
  if (focused !== document.body && !focused.isConnected) document.getElementById("main").focus();
  const news = [...sentences()].filter(([name, text]) => before.has(name) && before.get(name) !== text);
  if (news.length) announcer.textContent = news.map(([, text]) => text).join(". ");
}

async function refresh() {
  try {
    const answer = await fetch(location.href, { cache: "no-store", redirect: "manual" });
    if (answer.type === "opaqueredirect") location.reload(); // the session is over: the sign-in page comes
    else if (answer.ok) show(new DOMParser().parseFromString(await answer.text(), "text/html"));
    else stale(`no answer (${answer.status})`);
  } catch {
    stale("no connection");
  }
}

function stale(why) {
  const shown = document.getElementById("as-of");
  if (!shown.textContent.includes(why)) {
    shown.append(` · ${why}, trying again`);
    announcer.textContent = `The page is not up to date: ${why}`;
  }
}

async function run() {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
    if (live && !document.hidden) await refresh();
  }
}

function showToggle() {
  toggle.setAttribute("aria-pressed", String(live));
  toggle.textContent = live ? "Live" : "Live is off";
}

if (toggle && document.querySelector("[data-live]")) {
  showToggle();
  toggle.addEventListener("click", () => {
    live = !live;
    sessionStorage.setItem("live", live ? "on" : "off");
    showToggle();
    if (live) void refresh();
  });
  void run();
}

// What an action said is said once: a reload does not say it again.
const here = new URL(location.href);
if (here.searchParams.has("said")) {
  here.searchParams.delete("said");
  here.searchParams.delete("n");
  history.replaceState(null, "", here);
}

document.addEventListener("change", ({ target }) => {
  if (target.id !== "all") return;
  for (const box of document.querySelectorAll('input[name="id"][type="checkbox"]')) box.checked = target.checked;
});
