"""Levels of the log, and what is said once."""

import os

os.environ["TNG_LOG_LEVEL"] = "0"

import io
import logging
from contextlib import redirect_stdout

import torch
import torch_npu

import torchair

torchair.logger.setLevel(logging.DEBUG)
with redirect_stdout(io.StringIO()) as said:
    torchair.logger.warning_once("said %s", "once")
    torchair.logger.warning_once("said %s", "once")
    opt = torch.compile(lambda x: x + 1, backend=torchair.get_npu_backend())
    assert opt(torch.ones(2, device="npu")).tolist() == [2.0, 2.0]
    text = said.getvalue()
    torchair.logger.setLevel(logging.ERROR)
    torchair.logger.warning("not shown")
    assert said.getvalue() == text
assert text.count("said once") == 1
assert "[DEBUG]" in text
