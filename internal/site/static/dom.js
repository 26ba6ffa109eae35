// What the scripts of Chat share.
"use strict";

// Returns an element with this content: texts and elements.
const element = (kind, className, ...content) => {
  const made = document.createElement(kind);
  if (className) made.className = className;
  made.append(...content);
  return made;
};

// Returns a function that reports whether a text in lower case has each word of a search, in
// any order.
const finder = (search) => {
  const words = search.toLowerCase().split(/\s+/);
  return (text) => words.every((word) => text.includes(word));
};
