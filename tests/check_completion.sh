#!/bin/bash
# The completions that `tsr completion bash` prints, called as bash calls them: every command, every option that its
# --help lists, and no other; words for arguments that have choices, each of which the tool accepts; file names for the
# others called FILE. Of zsh's, where there is a zsh: the syntax, and that every option has its line.
#
#     tests/check_completion.sh TSR
set -euo pipefail
if [ $# != 1 ]; then
    echo "usage: tests/check_completion.sh TSR" >&2
    exit 2
fi
tsr=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
fail() {
    echo "$*"
    failed=1
}

"$tsr" completion bash >"$work/tsr"
"$tsr" completion zsh >"$work/_tsr"
bash -n "$work/tsr"
# shellcheck disable=SC1091 # made above
. "$work/tsr"
compopt() { :; } # outside of a completion there are no options to set

# complete_words WORD...: what is proposed for the last one, sorted, one a line.
complete_words() {
    COMP_WORDS=(tsr "$@")
    COMP_CWORD=$#
    COMPREPLY=()
    _tsr
    printf '%s\n' "${COMPREPLY[@]}" | sort
}

# expect TEXT WORD...: completing these words gives the words of TEXT.
expect() {
    local expected got
    # shellcheck disable=SC2086 # words, on purpose
    expected=$(printf '%s\n' $1 | sort)
    shift
    got=$(complete_words "$@")
    [ "$got" = "$expected" ] || fail "tsr $*: completed to '${got//$'\n'/ }', not '${expected//$'\n'/ }'"
}

# Names in --help: "  -m, --model FILE   ...".
options_of() {
    "$tsr" help "$@" | sed -nE 's/^  (-[^ ,]+)(, (--[^ ]+))?( .*)?$/\1 \3/p'
}

commands=$("$tsr" help | sed -n '/^commands:/,/^$/s/^  \([a-z]*\) .*/\1/p')
[ -n "$commands" ]
# shellcheck disable=SC2086
expect "$commands" ""
expect "bash zsh" completion ""
expect "doctor" help d
for command in $commands "bench links"; do
    case $command in
    help | version | completion) continue ;;
    esac
    # shellcheck disable=SC2206
    words=($command)
    options=$(options_of "${words[@]}")
    [ -n "$options" ] || fail "tsr $command: no options in its help"
    expect "$options" "${words[@]}" -
    section=$(sed -n "/^    '$command')/,/^        ;;/p" "$work/_tsr")
    for option in $options; do
        grep -qE -- "[ {,]$option[=}',]" <<<"$section" || fail "zsh: tsr $command has no $option"
    done
done
expect "links $(options_of bench)" bench ""

# Choices, also behind the = that bash separates.
expect "tensor layer none auto" plan -sm ""
expect "tensor" run --split-mode = te
expect "tensor layer none auto" run --split-mode =
expect "" run -p ""
cd "$work"
touch a.gguf 'b c.gguf'
expect a.gguf run -m a
expect a.gguf show a
[ "$(complete_words bench --save b)" = 'b c.gguf' ] || fail "a file name with a space is not completed"

# The tool takes each choice, of the commands that plan without a device.
for command in plan fit; do
    choices=$(sed -nE "/^    '$command'\)/,/^        ;;/s/^        (.* \| )?(-[a-z-]+)\) words='([^']*)' ;;$/\2 \3/p" tsr)
    [ -n "$choices" ]
    while read -r option words; do
        for word in $words; do
            "$tsr" $command --synthetic tinyllama-1.1b:q4_0 --machine '2x rtx3090' "$option" "$word" >output 2>&1 ||
                fail "tsr $command $option $word: $(cat output)"
        done
    done <<<"$choices"
done

if command -v zsh >/dev/null; then
    zsh -n _tsr || fail "zsh: the syntax of its completions is wrong"
else
    echo "zsh is not installed: its syntax was not tried"
fi
[ $failed = 0 ] && echo "completions of $(wc -w <<<"$commands") commands"
exit $failed
