"""The model that the project ships, for all tests."""

import os
import subprocess
from pathlib import Path

import pytest

import tsr

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "examples/models/glossary-7m-Q8_0.gguf"
PROMPT = "lighthouse (n.):"


@pytest.fixture
def model():
    with tsr.Model(GLOSSARY, [3, 1], devices="host:2,threads=1") as m:
        yield m


@pytest.fixture
def session(model):
    with tsr.Session(model) as s:
        yield s


def tool(*arguments):
    """What the tool of the build folder prints."""
    done = subprocess.run([os.environ["TSR_TOOL"], *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def compiled(source, folder):
    """What a C program prints that includes the public headers."""
    (folder / "program.c").write_text(source)
    includes = [f"-I{ROOT / 'include'}", f"-I{os.environ['TSR_GENERATED']}"]
    program = folder / "program"
    subprocess.run([os.environ["TSR_CC"], *includes, "-o", program, folder / "program.c"], check=True)
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout
