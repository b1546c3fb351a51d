#!/bin/sh
# scripts/make-trace-picture: the sums of a trace whose sums are known, a picture of it, and a real trace of `tsr run`.
#
#     tests/check_trace_picture.sh TSR
set -eu
tsr=$1
script=$(cd "$(dirname "$0")/.." && pwd)/scripts/make-trace-picture
model=$(dirname "$script")/../examples/models/glossary-7m-Q8_0.gguf
python3 -c 'import sys; sys.exit(sys.version_info < (3, 6))' 2>/dev/null || { echo "skipped: there is no Python 3.6"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# Two steps of 1 ms; device `fast` waits for `slow` in the first. A span before the steps belongs to none.
cat >trace.json <<'END'
{"displayTimeUnit": "ns", "otherData": {"version": "0", "dropped_spans": 0}, "traceEvents": [
{"ph":"M","pid":0,"name":"process_name","args":{"name":"tsr bench"}},
{"ph":"X","pid":0,"tid":0,"name":"one & <two>","ts":1000,"dur":1000,"cat":"phase"},
{"ph":"X","pid":0,"tid":0,"name":"three","ts":2000,"dur":1000,"cat":"phase"},
{"ph":"M","pid":1,"tid":0,"name":"process_name","args":{"name":"slow"}},
{"ph":"X","pid":1,"tid":0,"name":"early","ts":900,"dur":50,"cat":"compute","args":{"op":"mul_mat"}},
{"ph":"X","pid":1,"tid":0,"name":"a","ts":1000,"dur":500,"cat":"compute","args":{"op":"mul_mat"}},
{"ph":"X","pid":1,"tid":0,"name":"b","ts":1500,"dur":300,"cat":"compute","args":{"op":"mul_mat"}},
{"ph":"X","pid":1,"tid":0,"name":"s","ts":1800,"dur":100,"cat":"reduce","args":{"op":"all_reduce"}},
{"ph":"M","pid":2,"tid":0,"name":"process_name","args":{"name":"fast"}},
{"ph":"X","pid":2,"tid":0,"name":"a","ts":1000,"dur":250,"cat":"compute","args":{"op":"mul_mat"}},
{"ph":"X","pid":2,"tid":0,"name":"s","ts":1250,"dur":550,"cat":"wait","args":{"op":"all_reduce"}},
{"ph":"X","pid":2,"tid":0,"name":"s","ts":1800,"dur":100,"cat":"reduce","args":{"op":"all_reduce"}},
{"ph":"X","pid":2,"tid":1,"name":"d","ts":2000,"dur":1000,"cat":"copy","args":{"op":"download"}}]}
END
cat >expected <<'END'
phase                device         ms  compute   reduce     wait     copy     rest
one & <two>          slow         1.00   80.0 %   10.0 %    0.0 %    0.0 %   10.0 %
one & <two>          fast         1.00   25.0 %   10.0 %   55.0 %    0.0 %   10.0 %
three                slow         1.00    0.0 %    0.0 %    0.0 %    0.0 %  100.0 %
three                fast         1.00    0.0 %    0.0 %    0.0 %  100.0 %    0.0 %
END
"$script" trace.json picture.svg 'one & <two>' three | diff expected -
"$script" trace.json | diff expected -

# The picture: 650 units are the 1000 us of a phase, and spans that touch are one stroke.
python3 - <<'END'
import re
import xml.etree.ElementTree as ET

widths = {}
for path in ET.parse("picture.svg").getroot().iter("{http://www.w3.org/2000/svg}path"):
    if path.get("stroke-width") == "20":
        strokes = [float(h) for h in re.findall(r"h([0-9.]+)", path.get("d"))]
        widths.setdefault(path.get("stroke"), []).append(strokes)
assert list(widths.values()) == [[[520.0], [162.5]], [[65.0], [65.0]], [[357.5]], [[650.0]]], widths
END
cp picture.svg first.svg
"$script" trace.json picture.svg 'one & <two>' three >/dev/null
cmp first.svg picture.svg

if "$script" trace.json picture.svg four >output 2>&1 || ! grep -q "no phase 'four'; it has 'one & <two>', 'three'" output; then
    cat output
    exit 1
fi

"$tsr" run -m "$model" -p 'harbor (n.):' -n 2 -s 3 --devices host:2,threads=1 -ts 3,1 --trace run.json >output 2>&1
"$script" run.json run.svg prompt >sums
for device in host0 host1; do
    grep -Eq "^prompt +$device +[0-9.]+ +[1-9]" sums || { cat sums; exit 1; }
done
