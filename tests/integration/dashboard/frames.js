/* How long the page was not drawn at most, in milliseconds, from the first call to the next. */
() => {
  const state = (window.framesSeen ??= {
    last: performance.now(),
    longest: 0,
    frames: 0,
    isOn: false,
  });
  if (!state.isOn) {
    state.isOn = true;
    const step = (now) => {
      state.longest = Math.max(state.longest, now - state.last);
      state.last = now;
      state.frames += 1;
      requestAnimationFrame(step);
    };
    requestAnimationFrame((now) => {
      state.last = now;
      requestAnimationFrame(step);
    });
  }
  return { longest: state.longest, frames: state.frames };
};
