// Web workers cannot start on pages opened from disk (file://). There, and only there, this one stands in for `Worker`:
// it runs the script in a hidden frame and passes messages through. It is what the site's search needs.
"use strict";
(() => {
  if (location.protocol !== "file:") return;

  class FrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      inside.document.open();
      inside.document.write("<!doctype html><html><body></body></html>");
      inside.document.close();

      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = inside.document.createElement("script");
          script.src = source;
          script.onload = resolve;
          script.onerror = () => reject(new Error(`cannot load ${source}`));
          inside.document.body.appendChild(script);
        });
      inside.importScripts = (...sources) =>
        sources.flat().reduce((before, source) => before.then(() => load(source)), Promise.resolve());
      inside.postMessage = (data) => {
        const message = new MessageEvent("message", { data });
        this.dispatchEvent(message);
        if (this.onmessage) this.onmessage(message);
      };
      load(String(url)).then(() => {
        this.loaded = true;
        this.waiting.splice(0).forEach((data) => this.postMessage(data));
      });
    }

    postMessage(data) {
      if (this.loaded) this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
      else this.waiting.push(data);
    }

    terminate() {
      this.frame.remove();
    }
  }

  window.Worker = FrameWorker;
})();
