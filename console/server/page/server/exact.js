// JSON whose numbers keep every digit: a 64-bit integer or a numeric that passes through a double is another number.

// A number that JavaScript's own cannot hold as it was written.
export class ExactNumber {
  constructor(text) {
    this.text = text;
  }

  toString() {
    return this.text;
  }

  toJSON() {
    return JSON.rawJSON ? JSON.rawJSON(this.text) : this.text;
  }
}

export function parseExact(text) {
  return JSON.parse(text, (_, value, context) => {
    if (typeof value !== "number") {
      return value;
    }
    if (context?.source === undefined) { // an older browser, which does not say how it was written
      return Number.isInteger(value) && !Number.isSafeInteger(value) ? new ExactNumber(`≈ ${value}`) : value;
    }
    return String(value) === context.source ? value : new ExactNumber(context.source);
  });
}
