// Opens the folded member that an address points to, or whose name is clicked.
"use strict";
(() => {
  const open = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    let member = target?.closest(".doc-object");
    if (!member) return;
    for (; member; member = member.parentElement.closest(".doc-object")) {
      member.querySelector(":scope > details.member")?.setAttribute("open", "");
    }
    target.scrollIntoView();
  };
  addEventListener("hashchange", open);
  addEventListener("load", open);
  document.addEventListener("click", ({ target }) => {
    const details = target.closest(".doc-object-name")?.closest(".doc-object").querySelector(":scope > details.member");
    if (details) details.open = !details.open;
  });
})();
