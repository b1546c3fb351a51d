#!/bin/sh
# The binary interface is the recorded one, and scripts/make-abi finds what it must find: beside edited copies of the
# record, what was added, removed or changed, and whether programs linked before would break.
#
#     tests/abi/check_abi.sh BUILD_DIR
set -eu
if [ $# != 1 ]; then
    echo "usage: tests/abi/check_abi.sh BUILD_DIR" >&2
    exit 2
fi
build=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
record=tests/abi/x86-64-linux.txt

scripts/make-abi "$build" --check

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Beside the edited record the library has a function more and one fewer, another value, a struct that grew, one that grew
# and begins with its size, one of those that a function returned by value, a field in the place of reserved bytes, and one
# in another place.
sed -e '/^function tsr_version:/d' \
    -e 's/^\(value TSR_TYPE_F16\): 1 /\1: 9 /' \
    -e '/^field tsr_batch.outputs:/d' -e 's/^\(struct tsr_batch\): .*/\1: 24 bytes/' \
    -e 's/^\(struct tsr_kv_config\): .*/\1: 8 bytes/' \
    -e '/^field tsr_kv_config\.[^s]/d' \
    -e 's/^\(struct tsr_sampler_config\): .*/\1: 8 bytes/' \
    -e '/^field tsr_program_info.n_transfers:/d' \
    -e 's/^\(field tsr_program_info.reserved\): at 16, 64 bytes/\1: at 12, 68 bytes/' \
    -e '/^field tsr_fit_info.n_steps:/d' $record >"$work/record"
printf '%s\n' "function tsr_gone: void(*)()" "function tsr_by_value: tsr_sampler_config(*)()" >>"$work/record"
if scripts/make-abi "$build" --check "$work/record" >"$work/output"; then
    echo "scripts/make-abi finds no difference from an edited record"
    exit 1
fi
expect() {
    grep -qE "$1" "$work/output" || {
        cat "$work/output"
        echo "scripts/make-abi does not print: $1"
        exit 1
    }
}
breaks='    <- programs linked before break$'
expect '^added: function tsr_version: [^<]*$'
expect "^removed: function tsr_gone: .*$breaks"
expect "^changed: value TSR_TYPE_F16: 9 .* -> 1 .*$breaks"
expect "^added: field tsr_batch.outputs: .*$breaks"
expect '^changed: struct tsr_kv_config: 8 bytes -> [^<]*$'
expect "^changed: struct tsr_sampler_config: .*$breaks"
expect '^added: field tsr_program_info.n_transfers: [^<]*$'
expect '^changed: field tsr_program_info.reserved: [^<]*$'
expect "^added: field tsr_fit_info.n_steps: .*$breaks"
expect 'raise the minor version'
# Under another soname all of it may be recorded.
sed -i 's/^soname: .*/soname: libtsr.so.0.0/' "$work/record"
! scripts/make-abi "$build" --check "$work/record" >"$work/output"
expect '^changed: soname: libtsr.so.0.0 -> '
expect 'under a new soname'
echo "and differences from edited records are found"
