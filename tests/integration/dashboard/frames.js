/* How often the page was drawn from the first call to this one. */
() => {
  window.framesSeen ??= 0;
  if (window.framesSeen === 0) {
    const step = () => {
      window.framesSeen += 1;
      requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }
  return window.framesSeen;
};
