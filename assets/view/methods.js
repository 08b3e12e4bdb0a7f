// ---- methods ----

addPanel('methods', () => {});
