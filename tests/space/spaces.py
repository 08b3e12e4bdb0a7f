"""Stands in for Hugging Face's package `spaces`, which is on Spaces only and needs its servers.

Like the real one (0.51) it forks a process at the first call, keeps it for later ones, sends arguments and yields as
pickles, looks for a stop after each yield, and tells failures by the name of their class alone.
"""

from __future__ import annotations

import functools
import multiprocessing
from typing import Any

import gradio as gr
import torch

_fork = multiprocessing.get_context("fork")

asked: list[int] = []
"""GPU seconds asked for, call by call."""

worker_pids: list[int] = []
"""Which process answered, call by call."""

refusals: list[gr.Error] = []
"""Raised in place of the next calls."""


def GPU(*, duration: Any) -> Any:  # noqa: N802
    return functools.partial(_decorate, duration=duration)


def _decorate(task: Any, duration: Any) -> Any:
    workers: list[_Worker] = []

    @functools.wraps(task)
    def handler(*args: Any) -> Any:
        if refusals:
            raise refusals.pop()
        asked.append(duration(*args))
        worker = workers.pop() if workers else _Worker(task)
        worker_pids.append(worker.process.pid)
        worker.arguments.put(args)
        try:
            while (answer := worker.answers.get())[0] == "yield":
                yield answer[1]
        except GeneratorExit:
            worker.stop.set()
            while (answer := worker.answers.get())[0] == "yield":
                pass
            raise
        finally:
            if answer[0] == "end":
                workers.append(worker)
        if answer[0] == "error":
            raise gr.Error(answer[1], title="ZeroGPU worker error", print_exception=False)

    return handler


class _Worker:
    def __init__(self, task: Any) -> None:
        self.arguments, self.answers, self.stop = _fork.SimpleQueue(), _fork.SimpleQueue(), _fork.Event()
        self.process = _fork.Process(target=self._run, args=(task,), daemon=True)
        self.process.start()

    def _run(self, task: Any) -> None:
        torch.set_num_threads(1)  # the threads of tests that ran before did not survive the fork
        while True:
            args = self.arguments.get()
            self.stop.clear()
            try:
                generator = task(*args)
                for value in generator:
                    if self.stop.is_set():
                        generator.close()
                        break
                    self.answers.put(("yield", value))
            except Exception as error:
                self.answers.put(("error", type(error).__name__))
                return
            self.answers.put(("end", None))


def gradio_auto_wrap(task: Any) -> Any:
    """Gradio asks this for every handler of a page on a Space."""
    return task
