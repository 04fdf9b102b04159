/* Text that is seen, with a contrast to what is behind it that is too low (WCAG 2.1, AA). */
() => {
  const parse = (text) => {
    const numbers = text.match(/-?[\d.]+(?:e-?\d+)?/g).map(Number);
    const scale = text.startsWith("color(") ? 255 : 1;
    const [red, green, blue, alpha = 1] = numbers;
    return { rgb: [red * scale, green * scale, blue * scale], alpha };
  };
  const over = (front, back) =>
    front.rgb.map((one, index) => one * front.alpha + back[index] * (1 - front.alpha));
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement)
      layers.push(parse(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((back, layer) => over(layer, back), [255, 255, 255]);
  };
  const luminance = (rgb) => {
    const [red, green, blue] = rgb.map((one) => {
      const part = one / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const ratio = (one, two) => {
    const [high, low] = [luminance(one), luminance(two)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  const isSeen = (element) => {
    const box = element.getBoundingClientRect();
    return box.width > 1 && box.height > 1 && element.checkVisibility({ visibilityProperty: true });
  };
  const found = [];
  const look = (element, text) => {
    const style = getComputedStyle(element);
    const front = parse(style.color);
    // Letters of the editor's area are see-through on purpose: those behind it are looked at.
    if (front.alpha === 0 || !isSeen(element) || element.closest(":disabled")) return;
    const back = behind(element);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const is = ratio(over(front, back), back);
    if (is < (isLarge ? 3 : 4.5))
      found.push(`${is.toFixed(2)} ${element.tagName}.${element.className} ${text.slice(0, 40)}`);
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let looked = 0;
  while (walker.nextNode()) {
    const text = walker.currentNode.nodeValue.trim();
    const element = walker.currentNode.parentElement;
    if (!text || element.closest("script, noscript, option")) continue;
    looked += 1;
    look(element, text);
  }
  for (const control of document.querySelectorAll("input, select, textarea"))
    look(control, control.value);
  return { looked, found };
};
