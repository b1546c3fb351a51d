#!/usr/bin/env python3
"""A model over two unequal devices: what each device will hold, the text, and the same text after a change of split.

pip install ./python
python3 python/examples/splits.py
python3 python/examples/splits.py model.gguf "Once upon a time" cuda:0,cuda:1 3,1 1,1
"""

import sys
from pathlib import Path

import tsr

GLOSSARY = Path(__file__).parents[2] / "examples/models/glossary-7m-Q8_0.gguf"


def main(path=GLOSSARY, prompt="lighthouse (n.):", devices="host:2,threads=1", *splits):
    splits = [[float(part) for part in split.split(",")] for split in splits or ("3,1", "1,1", "0,1")]

    # The bytes of a plan are those that opening the model allocates.
    plan = tsr.plan(path, splits[0], devices=devices)
    for device in plan.devices:
        print(f"{device.name} will hold {device.total_bytes / 2**20:.1f} MiB, {device.bytes['weights']} B of weights")

    with tsr.Model(path, splits[0], devices=devices) as model, tsr.Session(model) as session:
        first = None
        for split in splits:
            model.resplit(split)
            session.trim(0)
            print(f"\ntensor_split {split}: {prompt}", end="", flush=True)
            text = ""
            for piece in session.generate(prompt, 32):
                print(piece, end="", flush=True)
                text += piece
            first = first or text
            if text != first:
                sys.exit("\nThe texts are DIFFERENT.")
    print("\n\nThe same text every time.")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except tsr.Error as failure:
        sys.exit(f"{failure.status}: {failure}")
