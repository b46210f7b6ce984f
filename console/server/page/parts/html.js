// Markup as tagged templates. Whatever is put into one is text or an attribute's value, never markup.

import { h } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export const html = htm.bind(h);
