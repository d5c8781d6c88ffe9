#!/usr/bin/env python3
"""paste.py FIGURES BENCHMARKS [NAME]: puts the tables between the two marks of a name, "load" by default."""
import sys
new, path = open(sys.argv[1]).read(), sys.argv[2]
name = sys.argv[3] if len(sys.argv) > 3 else "load"
old = open(path).read()
begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
i, j = old.index(begin) + len(begin), old.index(end)
open(path, "w").write(old[:i] + "\n" + new.strip() + "\n\n" + old[j:])
