"""A completion server that does as it is told; also a program, so that it can be an arm.

python _scripted_server.py --port N [--behaviour NAME]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

BEHAVIOURS = (
    "openai",
    "native",
    "unhealthy",
    "cached",
    "breaks",
    "dies",
    "silent",
    "refuses",
    "garbage",
    "error_event",
)


def make_handler(behaviour: str) -> type[BaseHTTPRequestHandler]:
    """Return a handler that behaves so."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"
        n_completions = 0
        bodies: ClassVar[list[dict[str, Any]]] = []

        def log_message(self, *_: object) -> None:
            pass

        def _json(self, status: int, content: object) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            if self.path == "/health":
                self._json(503 if behaviour == "unhealthy" else 200 if behaviour == "native" else 404, {})
            elif self.path == "/v1/models":
                self._json(503 if behaviour == "unhealthy" else 200, {"data": [{"id": "scripted"}]})
            elif self.path == "/props" and behaviour == "native":
                self._json(200, {"default_generation_settings": {}})
            else:
                self._json(404, {})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            type(self).bodies.append(body)
            type(self).n_completions += 1
            if behaviour == "refuses":
                self._json(400, {"error": {"message": "no such field: prompt"}})
                return
            self.send_response(200)
            self.end_headers()
            n_tokens = body.get("n_predict", body.get("max_tokens"))
            for token in range(n_tokens):
                self._stop_here(token)
                self._event(self._part(token))
            self._event(self._end(n_tokens))
            self.wfile.write(b"data: [DONE]\n\n")

        def _stop_here(self, token: int) -> None:
            if token != 3:
                return
            if behaviour == "dies" and type(self).n_completions > 2:
                os._exit(7)
            if behaviour == "silent":
                time.sleep(5.0)
            if behaviour == "breaks":
                self.wfile.close()
            if behaviour == "garbage":
                self.wfile.write(b"data: {oops\n\n")
            if behaviour == "error_event":
                self._event({"error": {"message": "out of memory"}})

        def _event(self, content: dict[str, Any]) -> None:
            self.wfile.write(b": a comment\n\ndata: " + json.dumps(content).encode() + b"\n\n")
            self.wfile.flush()

        def _part(self, token: int) -> dict[str, Any]:
            if behaviour == "native":
                return {"content": f"t{token} ", "tokens": [100 + token], "stop": False}
            return {"choices": [{"text": f"t{token} ", "finish_reason": None}]}

        def _end(self, n_tokens: int) -> dict[str, Any]:
            if behaviour == "native":
                timings = {"prompt_ms": 4.0, "predicted_ms": 8.0, "cache_n": 0, "draft_n": 6, "draft_n_accepted": 5}
                end = {"content": "", "tokens": [], "stop": True, "stop_type": "limit", "tokens_evaluated": 9}
                return {**end, "timings": timings}
            cached = {"prompt_tokens_details": {"cached_tokens": 8}} if behaviour == "cached" else {}
            usage = {"prompt_tokens": 9, "completion_tokens": n_tokens, **cached}
            return {"choices": [{"text": "", "finish_reason": "length"}], "usage": usage}

    return Handler


def main() -> None:
    """Serve until ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--behaviour", choices=BEHAVIOURS, default="openai")
    args = parser.parse_args()
    print(f"serving as {args.behaviour}", flush=True)
    ThreadingHTTPServer(("127.0.0.1", args.port), make_handler(args.behaviour)).serve_forever()


if __name__ == "__main__":
    main()
