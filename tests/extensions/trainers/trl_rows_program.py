"""Makes tokens of a record without ids by a small tokenizer, which it saves: FOLDER. Prints rows and texts as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from trl_program import CALL, tokenizer_of

from mcpenv.cli import execute

folder = Path(sys.argv[1])
tokenizer_of(CALL).save_pretrained(folder / "tokenizer")
tokenizer = tokenizer_of(CALL)
out = folder / "rows.jsonl"
command = ["trajectories", "export", str(folder / "record"), "--format", "tokens", "--out", str(out)]
assert execute([*command, "--tokenizer", str(folder / "tokenizer")]) == 0
(row,) = map(json.loads, out.read_text().splitlines())
written = [token for token, mine in zip(row["tokens"], row["mask"], strict=True) if mine]
print(json.dumps({"row": row, "text": tokenizer.decode(row["tokens"]), "written": tokenizer.decode(written)}))
