// The worker of the site's search, in the place of mkdocs's own: a word in a title weighs more than one in the text.
importScripts("lunr.js");

const TITLE_WEIGHT = 1.5;
const SUMMARY_LENGTH = 200;

let index = null;
const documents = new Map();

function build({ config, docs }) {
  lunr.tokenizer.separator = new RegExp(config.separator);
  index = lunr(function () {
    this.ref("location");
    this.field("title", { boost: TITLE_WEIGHT });
    this.field("text");
    for (const each of docs) {
      this.add(each);
      documents.set(each.location, each);
    }
  });
  postMessage({ config });
  postMessage({ allowSearch: true });
}

function load() {
  const request = new XMLHttpRequest(); // fetch takes no pages from a disk
  request.addEventListener("load", () => build(JSON.parse(request.responseText)));
  request.open("GET", "search_index.json");
  request.send();
}

function results(query) {
  return index.search(query).map(({ ref }) => {
    const { location, title, text } = documents.get(ref);
    return { location, title, summary: text.substring(0, SUMMARY_LENGTH) };
  });
}

onmessage = ({ data }) => {
  if (data.init) load();
  else if (data.query && index) postMessage({ results: results(data.query) });
};
