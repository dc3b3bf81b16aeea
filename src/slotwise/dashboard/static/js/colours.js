// A colour for each job: the same as long as the page is open, and different for jobs that are seen together as far as
// there are colours. Neighbours in the list are far apart on the circle.
const HUES = [212, 32, 152, 282, 352, 182, 62, 242, 122, 322, 12, 92];
const given = new Map();
const used = new Map();

function hash(text) {
  let value = 0;
  for (let index = 0; index < text.length; index += 1) value = (Math.imul(value, 31) + text.charCodeAt(index)) | 0;
  return Math.abs(value);
}

function entry(job) {
  let number = given.get(job);
  if (number === undefined) {
    const variants = HUES.length * 2;
    const first = hash(job) % variants;
    let best = first;
    for (let step = 0; step < variants; step += 1) {
      const candidate = (first + step) % variants;
      if ((used.get(candidate) ?? 0) < (used.get(best) ?? 0)) best = candidate;
    }
    number = best;
    used.set(number, (used.get(number) ?? 0) + 1);
    given.set(job, number);
  }
  return number;
}

/** A CSS colour that is readable on light and on dark. */
export function colourOf(job, dark) {
  const number = entry(job);
  const strong = number < HUES.length;
  const lightness = dark ? (strong ? 62 : 46) : strong ? 48 : 68;
  return `hsl(${HUES[number % HUES.length]} ${dark ? 52 : 58}% ${lightness}%)`;
}

/** Jobs that have gone give their colours back. */
export function keepColours(jobs) {
  for (const [job, number] of given) {
    if (!jobs.has(job)) {
      given.delete(job);
      used.set(number, used.get(number) - 1);
    }
  }
}

export const darkScheme = matchMedia("(prefers-color-scheme: dark)");
