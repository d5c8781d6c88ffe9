import { render } from "preact";
import { keepPage } from "./offline";
import { Root } from "./root";

// A file that is dropped beside a field would replace the page.
const refuse = (e: DragEvent) => {
  if (!e.dataTransfer?.types.includes("Files")) return;
  e.preventDefault();
  e.dataTransfer.dropEffect = "none";
};
addEventListener("dragover", refuse);
addEventListener("drop", refuse);

const app = document.getElementById("app")!;
app.replaceChildren(); // the skeleton
render(<Root />, app);
keepPage();
