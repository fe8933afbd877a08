// Values that several parts of the page watch.
import { useEffect, useState } from "preact/hooks";

export function store(first) {
  let value = first;
  const watching = new Set();
  return {
    get: () => value,
    set(next) {
      value = next;
      for (const told of [...watching]) {
        told(next);
      }
    },
    watch(told) {
      watching.add(told);
      return () => watching.delete(told);
    },
  };
}

export function useStore(watched) {
  const [value, set] = useState(watched.get);
  useEffect(() => {
    set(watched.get);
    return watched.watch((next) => set(() => next));
  }, [watched]);
  return value;
}
