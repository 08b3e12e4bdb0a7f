// ---- inspect ----

addPanel('inspect', () => {});
