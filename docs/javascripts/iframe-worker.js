// Search in pages that are opened as files. A browser starts no worker there, so the worker's script runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      document.body.append(frame);
      this.frame = frame;
      const inner = frame.contentWindow;
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.started = new Promise((resolve) => {
        const script = inner.document.createElement("script");
        script.onload = resolve;
        script.src = new URL(url, location.href);
        inner.document.body.append(script);
      });
    }

    postMessage(data) {
      const inner = this.frame.contentWindow;
      this.started.then(() => inner.dispatchEvent(new inner.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
