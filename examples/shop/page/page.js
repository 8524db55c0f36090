// Places orders, and shows how they go through. Each order has a key, which is the same for every repetition of its request.
const form = document.querySelector("#order");
const said = document.querySelector("#said");
const list = document.querySelector("#orders");
const steps = ["ordered", "billed", "shipped"];
const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

// randomUUID is there on https and localhost only; a key may be any string that nobody makes twice.
const newKey = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

// Repeats the request until it is answered: lost, "in progress" (409) and "try again" (503) are no answers.
async function place(key, order) {
  for (let wait = 250; ; wait = Math.min(2 * wait, 5000)) {
    try {
      const headers = { "Content-Type": "application/json", "Idempotency-Key": `"${key}"` };
      const response = await fetch("/orders", { method: "POST", headers, body: JSON.stringify(order) });
      if (response.ok) return await response.json();
      if (![409, 502, 503, 504].includes(response.status)) throw new RangeError(`the shop refuses this order (${response.status})`);
    } catch (error) {
      if (error instanceof RangeError) throw error;
    }
    said.textContent = "No answer yet; asking again with the same key…";
    await pause(wait);
  }
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const filled = new FormData(form);
  const order = { item: filled.get("item"), quantity: Number(filled.get("quantity")) };
  const key = newKey();
  said.textContent = "Placing the order…";
  try {
    const answers = await Promise.all(Array.from({ length: filled.has("impatient") ? 5 : 1 }, () => place(key, order)));
    const numbers = [...new Set(answers.map((answer) => answer.id))];
    const times = answers.length > 1 ? `, asked ${answers.length} times` : "";
    said.textContent = `Order ${numbers.join(", ")} is placed${times}.`;
  } catch (error) {
    said.textContent = `Sorry: ${error.message}.`;
  }
  await show();
});

function row(order) {
  const line = document.createElement("li");
  line.value = order.id;
  line.dataset.state = order.state;
  const number = document.createElement("span");
  number.className = "number";
  number.textContent = `No. ${order.id}`;
  const what = document.createElement("span");
  what.className = "what";
  what.textContent = `${order.quantity} × ${order.item}`;
  const progress = document.createElement("ol");
  progress.className = "steps";
  for (const step of steps) {
    const each = document.createElement("li");
    each.textContent = step;
    if (steps.indexOf(step) <= steps.indexOf(order.state)) each.className = "done";
    if (step === order.state) each.setAttribute("aria-current", "step");
    progress.append(each);
  }
  line.append(number, what, progress);
  return line;
}

async function show() {
  try {
    const orders = await (await fetch("/orders")).json();
    list.replaceChildren(...orders.map(row));
    document.querySelector("#empty").hidden = orders.length > 0;
    list.classList.remove("stale");
  } catch {
    list.classList.add("stale"); // the shop is away: what is shown may be old
  }
}

for (;;) {
  await show();
  await pause(1000);
}
