// A colour for each job: the same as long as the page is open, and different for jobs that are seen together as far as
// there are colours. Neighbours in the list are far apart on the circle.
const HUES = [212, 32, 152, 282, 352, 182, 62, 242, 122, 322, 12, 92];
const given = new Map();
const used = new Map();

function numberOf(job) {
  let number = given.get(job);
  if (number === undefined) {
    number = 0;
    for (let candidate = 0; candidate < HUES.length * 2; candidate += 1) {
      if ((used.get(candidate) ?? 0) < (used.get(number) ?? 0)) number = candidate;
    }
    used.set(number, (used.get(number) ?? 0) + 1);
    given.set(job, number);
  }
  return number;
}

/** A CSS colour that is readable on light and on dark. */
export function colourOf(job, dark) {
  const number = numberOf(job);
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
