#!/bin/sh
# scripts/make-benchmarks --check finds what it must find: in a copy of the page and the results, a changed figure, a
# changed table, a table without results and a broken file each make it fail, and a new table is made from the results.
set -eu
cd "$(dirname "$0")/.."

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
mkdir "$copy/scripts" "$copy/docs" "$copy/bench"
restore() {
    cp scripts/make-benchmarks "$copy/scripts/"
    cp docs/benchmarks.md "$copy/docs/"
    cp -R bench/results "$copy/bench/"
}
edit() { # FILE SED_SCRIPT: the script must change the file
    sed "$2" "$copy/$1" >"$copy/edited"
    if cmp -s "$copy/edited" "$copy/$1"; then
        echo "$1: '$2' changes nothing; the test needs another edit"
        exit 1
    fi
    mv "$copy/edited" "$copy/$1"
}
check() { "$copy/scripts/make-benchmarks" --check >"$copy/output" 2>&1; }
must_fail() { # MESSAGE: a part of what the check prints
    status=0
    check || status=$?
    if [ $status != 1 ] || ! grep -q "$1" "$copy/output"; then
        echo "expected exit status 1 and '$1', got $status and:"
        cat "$copy/output"
        exit 1
    fi
    restore
}

restore
status=0
check || status=$?
if [ $status != 0 ]; then
    cat "$copy/output"
    exit $status # 77 without Python
fi

edit bench/results/processes.json 's/159\.5/159.50/'
must_fail 'not the tables of bench/results: processes;'
edit docs/benchmarks.md 's/| 159\.5 |/| 159.6 |/'
must_fail 'not the tables of bench/results: processes;'
edit docs/benchmarks.md 's/<!-- table: processes -->/<!-- table: process -->/'
must_fail 'no result file has the table process$\|has table processes 0 times'
edit docs/benchmarks.md '/^<!-- end -->$/d'
must_fail 'needs its <!-- end -->'
edit bench/results/processes.json 's/"one_process": 157/"another": 157/'
must_fail 'processes.json: a row has the unknown field another'
edit bench/results/processes.json 's/"line"/"lines"/'
must_fail "processes.json: not of the format"
edit bench/results/processes.json 's/"version": 1,/"version": 2,/'
must_fail 'processes.json: format and version'
edit bench/results/processes.json 's/"cores": 2/"cores": 4/'
must_fail 'machine Zen 4 differs'
edit bench/results/processes.json '$d'
must_fail 'processes.json: '

# What makes the tables makes those that the check wants.
edit bench/results/processes.json 's/159\.5/161.25/'
"$copy/scripts/make-benchmarks" >/dev/null
check
grep -q '^| Q8_0 | decode | 161.25 | 157.4 | 0.99 \[0.97, 1.09\] |$' "$copy/docs/benchmarks.md"
