#!/bin/sh
# scripts/first-light with short lists, on a simulated GPU and then on two:
#
#     first_light.sh FOLDER_OF_PROGRAMS FOLDER_OF_THE_PROJECT
#
# Every step must succeed, but for tools that are not there. nvidia-smi and compute-sanitizer are small stand-ins.
set -u
programs=$1 project=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir "$work/bin"
for name in rope_kv no_gpu; do
    ln -s "$programs/../test_cuda_$name" "$work/bin/gpu_cuda_$name"
done
# The first run of this one ends without a result, as on a machine without memory: it has to run once more.
rm "$work/bin/gpu_cuda_no_gpu"
cat >"$work/bin/gpu_cuda_no_gpu" <<END
#!/bin/sh
if [ ! -e "$work/has_ended" ]; then
    touch "$work/has_ended"
    while [ ! -e "\$out/rope_kv.result" ]; do sleep 0.1; done
    read -r _ _ _ shell _ <"/proc/\$PPID/stat"
    kill -9 "\$shell"
    exit 1
fi
exec "$programs/../test_cuda_no_gpu"
END
cat >"$work/bin/nvidia-smi" <<'END'
#!/bin/sh
case $* in
*memory.used*) echo 100 ;;
*driver_version*) echo "simulated GPU, 0.0, 256 MiB" ;;
*) printf 'Driver Version : 0.0\nSM : 1000 MHz\n' ;;
esac
END
cat >"$work/bin/compute-sanitizer" <<'END'
#!/bin/sh
shift 4
"$@" && echo "========= ERROR SUMMARY: 0 errors"
END
chmod +x "$work"/bin/*
export FIRST_LIGHT_SHORT=1 FIRST_LIGHT_TREE="$project" FIRST_LIGHT_BIN="$work/bin:$programs"

fail() {
    echo "$1"
    cat "$work/$2"/report.md "$work/$2"/*.log
    exit 1
}

# run LIST GPUS STATUS
run() {
    FIRST_LIGHT_GPUS=$2 "$project/scripts/first-light" "$1" "$work/$1"
    [ $? = "$3" ] || fail "$1: the exit status is not $3" "$1"
}

# expect LIST STEP STATUS
expect() {
    grep -q "\"step\": \"$2\", \"status\": \"$3\"" "$work/$1/steps.jsonl" || fail "$1: $2 is not '$3'" "$1"
    grep -q "^| $1 | $2 | $3 | [0-9]* | " "$work/$1/report.md" || fail "$1: the report lacks $2" "$1"
}

run does-it-work 1 0
for step in nvidia-smi topo plan rope_kv several-on-one-gpu compute-sanitizer-memcheck-rope_kv \
    compute-sanitizer-racecheck-rope_kv no_gpu; do
    expect does-it-work $step ok
done
[ -s "$work/does-it-work/no_gpu.log" ] || fail "no_gpu did not run once more" does-it-work
run how-fast 1 0
for step in clocks projection rates kernels memory all-reduce-one-gpu Q4_K-decode Q4_K-prompt Q8_0 F16 switch-q8_0-cache; do
    expect how-fast $step ok
done
grep -q '^| Q8_0 | pp8 | [0-9.]* | [0-9.]* | [0-9.]* | [0-9.]* | [0-9.]* |' "$work/how-fast/report.md" ||
    fail "the report lacks the speed beside the prediction" how-fast
run why 1 0
PATH=$PATH:/usr/local/cuda/bin command -v ncu >/dev/null || expect why times-decode "not there"
run several 2 0
for step in topo all-reduce links prompt-nccl same-text nothing-on-gpu-0 weights-with-peers; do
    expect several $step ok
done
grep -q '"prompt-nccl".*pp8' "$work/several/steps.jsonl" || fail "the prompt's step shows another test's line" several

# Times of kernels are summed up; names and numbers have commas in them.
cat >"$work/bin/ncu" <<'END'
#!/bin/sh
cat <<'CSV'
==PROF== Connected
"ID","Kernel Name","Block Size","Grid Size","gpu__time_duration.sum"
"","","","","ns"
"0","void q_few_kernel<12, 1>(q_args)","(512, 1, 1)","(132, 1, 1)","1,500"
"1","void q_few_kernel<12, 1>(q_args)","(512, 1, 1)","(132, 1, 1)","2,500"
"2","scale_kernel(scale_args)","(256, 1, 1)","(1, 1, 1)","1,000"
CSV
END
chmod +x "$work/bin/ncu"
rm "$work/why/steps.jsonl"
run why 1 0
expect why kernels-of-decode ok
grep -q '4.0 us =    2 x     2.00 us  void q_few_kernel<12, 1> *grid (132, 1, 1)' "$work/why/kernels-of-decode.log" ||
    fail "kernels are not summed up" why
grep -q '^5.0 us in 3 launches' "$work/why/kernels-of-decode.log" || fail "times are not summed up" why

# What fails does not stop the next steps, and the exit status tells.
printf '#!/bin/sh\necho "no permission"\nexit 1\n' >"$work/bin/ncu"
chmod +x "$work/bin/ncu"
rm "$work/why/steps.jsonl"
run why 1 1
expect why counters-few-Q4_K 'failed (1)'
expect why times-decode 'failed (1)'
echo "all lists ran"
