// ---- race ----

addPanel('race', () => {});
