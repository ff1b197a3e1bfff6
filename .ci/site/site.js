// Browsers start no search in pages that are opened as files: say so where its box would be.
if (location.protocol === "file:") {
  const note = Object.assign(document.createElement("span"), {
    className: "unsearched", textContent: "To search: python -m http.server -d site",
  });
  document.querySelector(".md-header__inner")?.append(note);
}
