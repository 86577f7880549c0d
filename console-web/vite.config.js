import { defineConfig } from "vite";

// One script and one stylesheet with fixed names: the server knows them, and a build differs only where the sources do.
export default defineConfig({
  base: "./",
  build: {
    outDir: "../src/karpenter/webconsole/assets",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    assetsInlineLimit: 0,
    rollupOptions: {
      output: {
        entryFileNames: "console.js",
        assetFileNames: (file) => (file.names?.some((name) => name.endsWith(".css")) ? "console.css" : "[name][extname]"),
      },
    },
  },
});
