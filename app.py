"""The dashboard: python app.py, then open the address it prints."""

import sys

if sys.version_info < (3, 11):  # ahead of anything that an older Python could not even read
    sys.exit(
        "specviz: Python 3.11 or newer is needed, and this is Python {}.{} ({}). Install a newer one from "
        "https://www.python.org/downloads/ and start app.py with it.".format(*sys.version_info[:2], sys.executable)
    )

import argparse
import os
import time
from collections.abc import Sequence

from specviz.config import DRAFT_QUANTS, check_int
from specviz.console import speak_utf8
from specviz.errors import SpecvizError
from specviz.install import InstallError, install, missing_packages, run_inside
from specviz.models.choice import add_pair_flags, chosen_pair

DEFAULT_PORT = 7860


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the page until interrupted. Returns the exit status: 0, or 2 after an error."""
    began = time.perf_counter()
    speak_utf8()
    words = list(sys.argv[1:] if argv is None else argv)
    options = _parser().parse_args(words)
    try:
        if options.install:
            return run_inside(install(), [word for word in words if word != "--install"])
        missing = missing_packages()
        if missing:
            raise InstallError(f"this Python lacks {', '.join(missing)}. Run: {sys.executable} app.py --install")
        return _serve(options, began)
    except SpecvizError as error:
        print(f"specviz: {error}", file=sys.stderr)
        return 2
    except (OSError, OverflowError) as error:
        print(f"specviz: {_cannot_serve(options, error)}", file=sys.stderr)
        return 2


def _serve(options: argparse.Namespace, began: float) -> int:
    from specviz.models.catalog import load_catalog
    from specviz.models.machine import keep_few_arenas, leave_a_core
    from specviz.remote import RemoteEngine, read_addresses
    from specviz.ui.access.attached import AttachedServer
    from specviz.ui.access.host import EngineHost
    from specviz.ui.access.space import on_zero_gpu, settle_in
    from specviz.ui.page import build_page, launch

    keep_few_arenas()
    leave_a_core()
    if options.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(check_int("threads", options.threads, 1, 1024))
    settle_in()
    servers = [AttachedServer(RemoteEngine(address)) for address in read_addresses(options.attach)]
    options.load = options.load and not servers  # whoever watches a server need not have room for a model
    kind, default = EngineHost, ""
    if on_zero_gpu():
        from specviz.ui.access.zerogpu import DEFAULT_PAIR, ZeroGpuHost

        kind, default = ZeroGpuHost, DEFAULT_PAIR
    first = chosen_pair(options, default, options.draft_quant)
    pairs = load_catalog() | {first.name: first}
    host = kind(pairs, default_pair=first.name, default_dtype=options.dtype, servers=servers)
    if options.load:
        host.start()
    demo = build_page(host)
    _, url, _ = launch(demo, server_name=options.host, server_port=options.port, prevent_thread_lock=True)
    meanwhile = "; the model loads meanwhile" if options.load else ""
    print(f"specviz is ready at {url} after {time.perf_counter() - began:.1f} s{meanwhile}.", flush=True)
    try:
        while host.status.phase == "loading":
            time.sleep(0.2)
        if options.load:
            print(f"{host.status.text} (after {time.perf_counter() - began:.1f} s)", flush=True)
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        return 0
    finally:
        demo.close()


def _cannot_serve(options: argparse.Namespace, error: Exception) -> str:
    if options.port is None:
        return f"the page cannot be served on {options.host}: {error}"
    return (
        f"port {options.port} of {options.host} is in use, or not yours to use. Choose another with --port, or leave "
        "--port out for the next free one."
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="app.py", description="See speculative decoding accept and reject tokens.")
    parser.add_argument(
        "--install", action="store_true", help="first install what is missing, into .venv beside app.py"
    )
    parser.add_argument("--port", type=int, default=None, help=f"default: {DEFAULT_PORT}, or the next free one")
    here = os.environ.get("GRADIO_SERVER_NAME") or "127.0.0.1"
    parser.add_argument("--host", default=here, help="0.0.0.0 to serve the network too (default: %(default)s)")
    add_pair_flags(parser)
    parser.add_argument("--draft-quant", metavar="Q", default="auto", help=f"{', '.join(DRAFT_QUANTS)} (default: auto)")
    attach = "a running vLLM, SGLang or llama.cpp server to watch, may be repeated; its key is in SPECVIZ_ATTACH_KEY"
    parser.add_argument("--attach", action="append", default=[], metavar="URL", help=f"{attach} (or SPECVIZ_ATTACH)")
    dtypes = ("auto", "bfloat16", "float32")
    parser.add_argument("--dtype", choices=dtypes, default="auto", help="default: what is fast here")
    parser.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="threads that compute (default: one a core, but for one that the page and its browser have)",
    )
    parser.add_argument("--no-load", dest="load", action="store_false", help="load no model until somebody presses Run")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
