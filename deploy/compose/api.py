"""A sample API without idempotency: every POST is another charge."""
import http.server
import itertools
import json
import sys

charges = itertools.count(1)


class Api(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.dumps({"id": f"ch_{next(charges)}"}).encode()
        self.send_response(201)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 256


host, port = sys.argv[1].split(":")
server = Server((host, int(port)), Api)
print("listening", flush=True)
server.serve_forever()
