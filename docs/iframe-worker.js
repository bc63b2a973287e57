/* Search runs in a worker, which browsers refuse to pages that are opened as files. Here an
   invisible frame takes its place, so that search works without a server and without a network. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.frame = frame.contentWindow;
      this.frame.document.open();
      this.frame.document.write("<html><body></body></html>");
      this.frame.document.close();
      const load = (source) => new Promise((resolve, reject) => {
        const script = this.frame.document.createElement("script");
        script.src = source;
        script.onload = resolve;
        script.onerror = reject;
        this.frame.document.body.appendChild(script);
      });
      this.frame.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      this.frame.importScripts = (...sources) =>
        sources.reduce((previous, source) => previous.then(() => load(source)), Promise.resolve());
      this.ready = load(url);
    }
    postMessage(data) {
      this.ready.then(() => this.frame.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.frameElement.remove();
    }
  };
}
